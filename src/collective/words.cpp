// The names of collectives, reductions and element types, and their kinds.
#include "collective/operation.hpp"

namespace sidestep {

std::string_view to_string(Collective collective) {
    switch (collective) {
        case Collective::all_reduce:
            return "all_reduce";
        case Collective::broadcast:
            return "broadcast";
        case Collective::reduce:
            return "reduce";
        case Collective::all_gather:
            return "all_gather";
        case Collective::reduce_scatter:
            return "reduce_scatter";
        case Collective::all_to_all:
            return "all_to_all";
        case Collective::all_to_all_v:
            return "all_to_all_v";
        case Collective::gather:
            return "gather";
        case Collective::scatter:
            return "scatter";
        case Collective::send_recv:
            return "send_recv";
        case Collective::barrier:
            return "barrier";
    }
    return "?";
}

std::string_view to_string(ReduceOp op) {
    switch (op) {
        case ReduceOp::sum:
            return "sum";
        case ReduceOp::prod:
            return "prod";
        case ReduceOp::min:
            return "min";
        case ReduceOp::max:
            return "max";
        case ReduceOp::avg:
            return "avg";
        case ReduceOp::scaled_sum:
            return "scaled_sum";
    }
    return "?";
}

namespace collective {

std::string_view to_string(protocol::Element element) {
    constexpr std::string_view names[protocol::elements] = {
        "i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8_e4m3", "f8_e5m2"};
    return names[static_cast<unsigned>(element)];
}

std::string_view to_string(protocol::Combine combine) {
    switch (combine) {
        case protocol::Combine::none:
            return "none";
        case protocol::Combine::sum:
            return "sum";
        case protocol::Combine::prod:
            return "prod";
        case protocol::Combine::min:
            return "min";
        case protocol::Combine::max:
            return "max";
        case protocol::Combine::avg:
            return "avg";
        case protocol::Combine::scaled_sum:
            return "scaled_sum";
    }
    return "?";
}

bool combines(Collective collective) {
    return collective == Collective::all_reduce || collective == Collective::reduce ||
           collective == Collective::reduce_scatter;
}

bool has_root(Collective collective) {
    return collective == Collective::broadcast || collective == Collective::reduce ||
           collective == Collective::gather || collective == Collective::scatter;
}

}  // namespace collective
}  // namespace sidestep
