// What an operation is called, and the hash by which ranks see that they run the same one.
#include "collective/operation.hpp"

#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sidestep::collective {

using protocol::Combine;
using protocol::Element;

namespace {

// FNV-1a of 32 bits. Source: RFC draft-eastlake-fnv, "The FNV Non-Cryptographic Hash Algorithm".
class Hash {
public:
    void add(std::uint64_t value) {
        for (int i = 0; i < 8; ++i) {
            state_ ^= static_cast<std::uint8_t>(value >> (8 * i));
            state_ *= 16777619u;
        }
    }
    std::uint32_t value() const { return state_ == 0 ? 1 : state_; }

private:
    std::uint32_t state_ = 2166136261u;
};

std::string peers_of(const Operation& operation) {
    std::set<int> peers;
    for (const PairItem& item : operation.pairs) peers.insert(item.peer);
    if (peers.empty()) return "send_recv with nobody";
    return fmt::format("send_recv with rank{} {}", peers.size() == 1 ? "" : "s", fmt::join(peers, ", "));
}

// A type that moves as this one does where nothing is combined: of the same size.
Result<Element> moved_as(Dtype dtype) {
    switch (bits_of(dtype)) {
        case 8:
            return Element::u8;
        case 16:
            return Element::f16;
        case 32:
            return Element::u32;
        case 64:
            return Element::u64;
        default:
            break;
    }
    return Error{ErrorCode::invalid_argument,
                 fmt::format("collectives move elements of whole bytes, which {} is not", to_string(dtype)),
                 {},
                 "give the packed tensor as u8 with its count of bytes"};
}

}  // namespace

Result<Element> element_of(Dtype dtype, bool combines) {
    switch (dtype) {
        case Dtype::boolean:
        case Dtype::u8:
            return Element::u8;
        case Dtype::i8:
            return Element::i8;
        case Dtype::i32:
            return Element::i32;
        case Dtype::u32:
            return Element::u32;
        case Dtype::i64:
            return Element::i64;
        case Dtype::u64:
            return Element::u64;
        case Dtype::f16:
            return Element::f16;
        case Dtype::f32:
            return Element::f32;
        case Dtype::f64:
            return Element::f64;
        case Dtype::bf16:
            return Element::bf16;
        case Dtype::f8_e4m3:
            return Element::f8_e4m3;
        case Dtype::f8_e5m2:
            return Element::f8_e5m2;
        default:
            break;
    }
    if (!combines) return moved_as(dtype);
    return Error{ErrorCode::invalid_argument,
                 fmt::format("collectives do not combine elements of type {}", to_string(dtype)),
                 {},
                 "they combine I8, U8, I32, U32, I64, U64, F16, BF16, F32, F64, F8_E4M3 and F8_E5M2"};
}

std::uint32_t signature_of(const Operation& operation) {
    Hash hash;
    hash.add(static_cast<std::uint64_t>(operation.collective));
    if (operation.collective == Collective::barrier || operation.collective == Collective::send_recv)
        return hash.value();
    hash.add(static_cast<std::uint64_t>(operation.element));
    if (operation.collective == Collective::all_to_all_v) return hash.value();
    hash.add(combines(operation.collective) ? static_cast<std::uint64_t>(operation.combine) : 0);
    hash.add(operation.count);
    hash.add(has_root(operation.collective) ? static_cast<std::uint64_t>(operation.root) : 0);
    for (const CoalescedItem& item : operation.coalesced) hash.add(item.count);
    return hash.value();
}

std::string describe(const Operation& operation) {
    const std::string_view name = to_string(operation.collective);
    const std::string_view type = to_string(operation.element);
    switch (operation.collective) {
        case Collective::barrier:
            return "barrier";
        case Collective::send_recv:
            return peers_of(operation);
        case Collective::all_to_all_v:
            return fmt::format("{} {}", name, type);
        default:
            break;
    }
    std::string text = fmt::format("{} {} {}", name, operation.count, type);
    if (combines(operation.collective)) text += fmt::format(" {}", to_string(operation.combine));
    if (has_root(operation.collective)) {
        const bool from_root =
            operation.collective == Collective::broadcast || operation.collective == Collective::scatter;
        text += fmt::format(" {} rank {}", from_root ? "from" : "to", operation.root);
    }
    if (!operation.coalesced.empty()) text += fmt::format(" of {} calls", operation.coalesced.size());
    return text;
}

}  // namespace sidestep::collective
