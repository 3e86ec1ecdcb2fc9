#include "backends/verbs/pair.hpp"

#include <algorithm>

#include "base/try.hpp"
#include "driver/random.hpp"

namespace sidestep::backends::verbs {
namespace {

// 4.096 us x 2^17, half a second, and up to four times that by the card's leave, seven times. With less, an end that is
// only busy is sent all of it again, and over Soft-RoCE that was seen to break the connection ("remote invalid request error").
constexpr std::uint8_t timeout = 17, retries = 7;
constexpr std::uint8_t wait_for_receives = 12;  // 0.64 ms; with credits nobody has to

}  // namespace

Result<void> make_joinable(const driver::VerbsQueuePair& pair, const Card& card) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = card.port;
    attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    return pair.modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                       "ready to be joined");
}

Result<void> join_pair(const driver::VerbsQueuePair& pair, const Card& card, const Greeting& mine,
                       const Greeting& theirs, std::uint8_t mtu) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = static_cast<ibv_mtu>(mtu);
    attributes.dest_qp_num = theirs.queue_pair;
    attributes.rq_psn = theirs.first_packet;
    attributes.max_dest_rd_atomic = 1;
    attributes.min_rnr_timer = wait_for_receives;
    attributes.ah_attr.dlid = theirs.lid;
    attributes.ah_attr.port_num = card.port;
    if (card.layer == LinkLayer::ethernet) {
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.grh.hop_limit = 64;
        attributes.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(card.gid.index);
        std::copy(theirs.gid.begin(), theirs.gid.end(), attributes.ah_attr.grh.dgid.raw);
    }
    SIDESTEP_CHECK(pair.modify(attributes,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                               "able to receive"));
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = timeout;
    attributes.retry_cnt = retries;
    attributes.rnr_retry = 7;  // without end
    attributes.sq_psn = mine.first_packet;
    attributes.max_rd_atomic = 1;
    return pair.modify(attributes,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC,
                       "able to send");
}

Greeting greeting_of(const driver::VerbsQueuePair& pair, const Card& card) {
    Greeting greeting;
    greeting.queue_pair = pair.number();
    greeting.first_packet = static_cast<std::uint32_t>(driver::random_number()) & 0xffffffu;
    greeting.gid = card.gid.gid;
    greeting.lid = card.lid;
    greeting.mtu = card.mtu;
    greeting.layer = card.layer;
    return greeting;
}

}  // namespace sidestep::backends::verbs
