// Bytes and rates of an operation as nccl-tests counts them. Source: nccl-tests, doc/PERFORMANCE.md.
#include <algorithm>

#include "collective/choose.hpp"

namespace sidestep::collective {

namespace {

std::uint64_t listed_bytes(const Operation& operation, int ranks) {
    const BlockLists& lists = operation.blocks;
    if (lists.on_device || lists.send_counts == nullptr) return 0;
    std::uint64_t elements = 0;
    for (int rank = 0; rank < ranks; ++rank) elements += lists.send_counts[rank];
    return elements * size_of(operation.element);
}

std::uint64_t pair_bytes(const Operation& operation) {
    std::uint64_t sent = 0, received = 0;
    for (const PairItem& item : operation.pairs) (item.sends ? sent : received) += item.bytes;
    return std::max(sent, received);
}

}  // namespace

Bytes counted_bytes(const Operation& operation, int ranks) {
    const Bytes block = operation.count * size_of(operation.element);
    switch (operation.collective) {
        case Collective::all_reduce:
        case Collective::broadcast:
        case Collective::reduce:
            return block;
        case Collective::all_gather:
        case Collective::reduce_scatter:
        case Collective::all_to_all:
        case Collective::gather:
        case Collective::scatter:
            return block * static_cast<Bytes>(ranks);
        case Collective::all_to_all_v:
            return listed_bytes(operation, ranks);
        case Collective::send_recv:
            return pair_bytes(operation);
        case Collective::barrier:
            break;
    }
    return 0;
}

double bus_factor(Collective collective, int ranks) {
    const double n = ranks;
    switch (collective) {
        case Collective::all_reduce:
            return 2 * (n - 1) / n;
        case Collective::all_gather:
        case Collective::reduce_scatter:
        case Collective::all_to_all:
        case Collective::all_to_all_v:
        case Collective::gather:
        case Collective::scatter:
            return (n - 1) / n;
        case Collective::broadcast:
        case Collective::reduce:
        case Collective::send_recv:
        case Collective::barrier:
            break;
    }
    return 1;
}

double bus_rate(const Operation& operation, int ranks, double us) {
    if (us <= 0) return 0;
    return static_cast<double>(counted_bytes(operation, ranks)) / (us * 1e3) *
           bus_factor(operation.collective, ranks);
}

}  // namespace sidestep::collective
