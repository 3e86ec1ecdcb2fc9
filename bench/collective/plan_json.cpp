// Plans and lines as JSON: what the processes of one run tell each other.
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/collective/plan.hpp"
#include "bench/collective/rank.hpp"

namespace sidestep::bench::collective {
namespace {

using Json = nlohmann::json;

Error no_plan(const char* what) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} of another process cannot be read", what),
                 "bench collective",
                 {}};
}

template <typename T>
Json numbers_of(const std::vector<T>& values) {
    Json list = Json::array();
    for (const T value : values) list.push_back(static_cast<std::int64_t>(value));
    return list;
}

template <typename T>
std::vector<T> values_of(const Json& list) {
    std::vector<T> values;
    for (const std::int64_t value : list.get<std::vector<std::int64_t>>())
        values.push_back(static_cast<T>(value));
    return values;
}

// A call is seven numbers, in the order of its members.
Json json_of(const Call& call) {
    return numbers_of<std::int64_t>(
        {static_cast<std::int64_t>(call.operation), static_cast<std::int64_t>(call.type),
         static_cast<std::int64_t>(call.reduction), static_cast<std::int64_t>(call.count),
         static_cast<std::int64_t>(call.bytes), static_cast<std::int64_t>(call.mode), call.in_place ? 1 : 0});
}

Call call_of(const Json& json) {
    const auto values = json.get<std::vector<std::int64_t>>();
    return {static_cast<Collective>(values.at(0)),
            static_cast<Dtype>(values.at(1)),
            static_cast<ReduceOp>(values.at(2)),
            static_cast<std::uint64_t>(values.at(3)),
            static_cast<Bytes>(values.at(4)),
            static_cast<Mode>(values.at(5)),
            values.at(6) != 0};
}

}  // namespace

std::string Plan::to_json() const {
    const Json json = {{"operations", numbers_of(operations)},
                       {"types", numbers_of(types)},
                       {"reductions", numbers_of(reductions)},
                       {"sizes", numbers_of(sizes)},
                       {"modes", numbers_of(modes)},
                       {"root", root},
                       {"iterations", iterations},
                       {"launches", launches},
                       {"warmup", warmup},
                       {"samples", samples},
                       {"verify", verify},
                       {"zero_sm", zero_sm},
                       {"nccl", nccl}};
    return json.dump();
}

// The reader throws at whatever is not as to_json() wrote it.
Result<Plan> Plan::from_json(const std::string& text) {
    try {
        const Json json = Json::parse(text);
        Plan plan;
        plan.operations = values_of<Collective>(json.at("operations"));
        plan.types = values_of<Dtype>(json.at("types"));
        plan.reductions = values_of<ReduceOp>(json.at("reductions"));
        plan.sizes = values_of<Bytes>(json.at("sizes"));
        plan.modes = values_of<Mode>(json.at("modes"));
        plan.root = json.at("root").get<int>();
        plan.iterations = json.at("iterations").get<int>();
        plan.launches = json.at("launches").get<int>();
        plan.warmup = json.at("warmup").get<int>();
        plan.samples = json.at("samples").get<int>();
        plan.verify = json.at("verify").get<bool>();
        plan.zero_sm = json.at("zero_sm").get<bool>();
        plan.nccl = json.at("nccl").get<std::string>();
        return plan;
    } catch (const std::exception&) {
        return no_plan("the plan");
    }
}

std::string Found::to_json() const {
    Json list = Json::array();
    for (const Line& line : lines)
        list.push_back({{"call", json_of(line.call)},
                        {"engine", line.engine},
                        {"us", line.us.values},
                        {"wrong", line.wrong},
                        {"path", line.path},
                        {"missing", line.missing}});
    const Json whole = {{"lines", list}, {"notes", notes}};
    return whole.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Found> Found::from_json(const std::string& text) {
    try {
        const Json whole = Json::parse(text);
        Found found;
        found.notes = whole.at("notes").get<std::vector<std::string>>();
        for (const Json& json : whole.at("lines")) {
            Line line;
            line.call = call_of(json.at("call"));
            line.engine = json.at("engine").get<std::string>();
            line.us.values = json.at("us").get<std::vector<double>>();
            line.wrong = json.at("wrong").get<std::int64_t>();
            line.path = json.at("path").get<std::string>();
            line.missing = json.at("missing").get<std::string>();
            found.lines.push_back(std::move(line));
        }
        return found;
    } catch (const std::exception&) {
        return no_plan("what was measured");
    }
}

}  // namespace sidestep::bench::collective
