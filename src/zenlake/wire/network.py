"""The network messages: what FRAMEs and low-latency batches carry, by id (0x19 to 0x1f)."""

from zenlake.wire import declare, interest, oam, push, request, response, response_final
from zenlake.wire.declare import Declare
from zenlake.wire.dispatch import ID_MASK, MessageRow, MessageTable
from zenlake.wire.interest import Interest
from zenlake.wire.oam import NetworkOam
from zenlake.wire.push import Push
from zenlake.wire.request import Request
from zenlake.wire.response import Response
from zenlake.wire.response_final import ResponseFinal

NetworkMessage = Push | Request | Response | ResponseFinal | Declare | Interest | NetworkOam

FIRST_ID = interest.ID
"Ids from here on are network messages; the transport's are below 0x08. That is how a FRAME ends."

NETWORK = MessageTable(
    "network message",
    MessageRow(push.ID, "PUSH", Push, push.read_push, push.write_push),
    MessageRow(request.ID, "REQUEST", Request, request.read_request, request.write_request),
    MessageRow(response.ID, "RESPONSE", Response, response.read_response, response.write_response),
    MessageRow(
        response_final.ID,
        "RESPONSE_FINAL",
        ResponseFinal,
        response_final.read_response_final,
        response_final.write_response_final,
    ),
    MessageRow(declare.ID, "DECLARE", Declare, declare.read_declare, declare.write_declare),
    MessageRow(interest.ID, "INTEREST", Interest, interest.read_interest, interest.write_interest),
    MessageRow(oam.NETWORK_ID, "OAM", NetworkOam, oam.read_network_oam, oam.write_network_oam),
)


def is_network(header: int) -> bool:
    return header & ID_MASK >= FIRST_ID
