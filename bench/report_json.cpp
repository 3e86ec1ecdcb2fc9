// The report as JSON and back; docs/bench-format.md describes it.
//
// A file may come from anywhere, so every member is looked at before it is used, and the first one that is
// wrong ends the reading with its place: "cases[2].figures[0].unit is not a text".
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/try.hpp"
#include "bench/report.hpp"
#include "bench/text_file.hpp"

namespace sidestep::bench {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr const char* format_name = "sidestep-bench";
constexpr int format_version = 1;
// Reports are tens of kilobytes; a cluster's topology adds some megabytes.
constexpr std::size_t max_report_bytes = std::size_t{64} << 20;
constexpr int max_levels = 64;

const char* word_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::pass:
            return "pass";
        case Verdict::fail:
            return "fail";
        case Verdict::none:
            break;
    }
    return "none";
}

OrderedJson json_of(const Figure& figure) {
    OrderedJson json = {{"what", figure.what},
                        {"from", figure.from},
                        {"to", figure.to},
                        {"bytes", figure.bytes},
                        {"unit", figure.unit},
                        {"more_is_better", figure.more_is_better},
                        {"median", figure.measured.median()},
                        {"samples", figure.measured.values},
                        {"limit", figure.limit},
                        {"limit_source", figure.limit_source},
                        {"share_of_limit", figure.share_of_limit()},
                        {"verified", figure.verified},
                        {"threshold", figure.threshold},
                        {"verdict", word_of(figure.verdict)},
                        {"path", figure.path},
                        {"peers", OrderedJson::array()}};
    for (const Peer& peer : figure.peers)
        json["peers"].push_back(
            {{"name", peer.name}, {"median", peer.samples.median()}, {"samples", peer.samples.values}});
    return json;
}

OrderedJson json_of(const CaseResult& result) {
    OrderedJson json = {
        {"key", result.key},       {"description", result.description}, {"skipped", result.skipped},
        {"failed", result.failed}, {"figures", OrderedJson::array()},   {"notes", result.notes}};
    for (const Figure& figure : result.figures) json["figures"].push_back(json_of(figure));
    return json;
}

// Reads the members of one object. The first failure is kept, and everything after it does nothing, so a
// caller asks for all members and looks at `error` once.
class Reader {
public:
    Reader(const OrderedJson& json, std::string at, Error& error)
        : json_(json), at_(std::move(at)), error_(error) {
        if (!json_.is_object()) fail(at_.empty() ? "the whole" : at_, "is not an object");
    }

    void read(const char* name, std::string& out) { take(name, out, &OrderedJson::is_string, "a text"); }
    void read(const char* name, bool& out) { take(name, out, &OrderedJson::is_boolean, "true or false"); }
    void read(const char* name, Bytes& out) {
        take(name, out, &OrderedJson::is_number_unsigned, "a whole number");
    }
    void read(const char* name, double& out) {
        const OrderedJson* value = member(name);
        if (value) number(*value, place(name), out);
    }
    void read(const char* name, std::vector<double>& out) {
        each(name,
             [&](const OrderedJson& item, const std::string& at) { number(item, at, out.emplace_back()); });
    }
    void read(const char* name, std::vector<std::string>& out) {
        each(name, [&](const OrderedJson& item, const std::string& at) {
            if (!item.is_string()) return fail(at, "is not a text");
            out.push_back(item.get<std::string>());
        });
    }
    void read(const char* name, Verdict& out) {
        std::string word;
        read(name, word);
        for (const Verdict verdict : {Verdict::none, Verdict::pass, Verdict::fail})
            if (word == word_of(verdict)) {
                out = verdict;
                return;
            }
        fail(place(name), "is neither none, pass nor fail");
    }
    // Calls with each item of an array and its place.
    template <typename Call>
    void each(const char* name, const Call& call) {
        const OrderedJson* value = member(name);
        if (!value) return;
        if (!value->is_array()) return fail(place(name), "is not a list");
        std::size_t index = 0;
        for (const OrderedJson& item : *value) {
            if (failed()) return;
            call(item, fmt::format("{}[{}]", place(name), index++));
        }
    }
    const OrderedJson* member(const char* name) {
        if (failed()) return nullptr;
        const auto found = json_.find(name);
        if (found == json_.end()) {
            fail(place(name), "is missing");
            return nullptr;
        }
        return &*found;
    }
    void fail(const std::string& place, const std::string& what) {
        if (failed()) return;
        error_.message = fmt::format("{} {}", place, what);
    }
    std::string place(const char* name) const { return at_.empty() ? name : fmt::format("{}.{}", at_, name); }
    bool failed() const { return !error_.message.empty(); }

private:
    template <typename T>
    void take(const char* name, T& out, bool (OrderedJson::*is)() const noexcept, const char* kind) {
        const OrderedJson* value = member(name);
        if (!value) return;
        if (!(value->*is)()) return fail(place(name), fmt::format("is not {}", kind));
        out = value->get<T>();
    }
    void number(const OrderedJson& value, const std::string& at, double& out) {
        if (!value.is_number()) return fail(at, "is not a number");
        out = value.get<double>();
        if (!std::isfinite(out)) fail(at, "is not a finite number");
    }

    const OrderedJson& json_;
    std::string at_;
    Error& error_;
};

Figure figure_of(const OrderedJson& json, const std::string& at, Error& error) {
    Figure figure;
    Reader reader(json, at, error);
    reader.read("what", figure.what);
    reader.read("from", figure.from);
    reader.read("to", figure.to);
    reader.read("bytes", figure.bytes);
    reader.read("unit", figure.unit);
    reader.read("more_is_better", figure.more_is_better);
    reader.read("samples", figure.measured.values);
    reader.read("limit", figure.limit);
    reader.read("limit_source", figure.limit_source);
    reader.read("verified", figure.verified);
    reader.read("threshold", figure.threshold);
    reader.read("verdict", figure.verdict);
    reader.read("path", figure.path);
    reader.each("peers", [&](const OrderedJson& item, const std::string& place) {
        Peer& peer = figure.peers.emplace_back();
        Reader inner(item, place, error);
        inner.read("name", peer.name);
        inner.read("samples", peer.samples.values);
    });
    return figure;
}

CaseResult case_of(const OrderedJson& json, const std::string& at, Error& error) {
    CaseResult result;
    Reader reader(json, at, error);
    reader.read("key", result.key);
    reader.read("description", result.description);
    reader.read("skipped", result.skipped);
    reader.read("failed", result.failed);
    reader.each("figures", [&](const OrderedJson& item, const std::string& place) {
        result.figures.push_back(figure_of(item, place, error));
    });
    reader.read("notes", result.notes);
    return result;
}

void read_head(Reader& reader, Report& report) {
    std::string format;
    Bytes version = 0;
    reader.read("format", format);
    if (!reader.failed() && format != format_name)
        reader.fail("format", fmt::format("is '{}', not '{}'", format, format_name));
    reader.read("format_version", version);
    if (!reader.failed() && version != format_version)
        reader.fail("format_version", fmt::format("is {}; this program reads {}", version, format_version));
    reader.read("version", report.version);
    reader.read("date", report.date);
    reader.read("command", report.command);
    reader.read("machine", report.machine);
    reader.read("emulated", report.emulated);
    reader.read("processor", report.processor);
    reader.read("kernel", report.kernel);
    reader.read("driver", report.driver);
    const OrderedJson* topology = reader.member("topology");
    if (!topology || topology->is_null()) return;
    if (!topology->is_object()) return reader.fail("topology", "is neither an object nor null");
    report.topology = topology->dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// Whether brackets nest deeper than any report's do: writing JSON out again takes stack for each level.
bool too_deep(const std::string& text) {
    int depth = 0;
    bool quoted = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted && c == '\\') ++i;
        if (c == '"') quoted = !quoted;
        if (quoted) continue;
        if (c == '[' || c == '{') ++depth;
        if (c == ']' || c == '}') --depth;
        if (depth > max_levels) return true;
    }
    return false;
}

}  // namespace

std::string Report::to_json() const {
    OrderedJson json = {{"format", format_name},
                        {"format_version", format_version},
                        {"version", version},
                        {"date", date},
                        {"command", command},
                        {"machine", machine},
                        {"emulated", emulated},
                        {"processor", processor},
                        {"kernel", kernel},
                        {"driver", driver},
                        {"cases", OrderedJson::array()},
                        {"notes", notes},
                        {"topology", OrderedJson()}};
    for (const CaseResult& result : cases) json["cases"].push_back(json_of(result));
    OrderedJson machine_json = OrderedJson::parse(topology, nullptr, false);
    if (machine_json.is_object()) json["topology"] = std::move(machine_json);
    return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<Report> Report::from_json(const std::string& text, const std::string& where) {
    if (text.size() > max_report_bytes)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the report is larger than {}", format_bytes(max_report_bytes)),
                     where,
                     {}};
    if (too_deep(text))
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the report nests deeper than {} levels", max_levels),
                     where,
                     {}};
    const OrderedJson json = OrderedJson::parse(text, nullptr, false);
    if (json.is_discarded()) return Error{ErrorCode::invalid_argument, "the report is no JSON", where, {}};
    Report report;
    Error error{ErrorCode::invalid_argument, {}, where, "sidestep bench --save FILE writes reports"};
    Reader reader(json, "", error);
    read_head(reader, report);
    reader.each("cases", [&](const OrderedJson& item, const std::string& at) {
        report.cases.push_back(case_of(item, at, error));
    });
    reader.read("notes", report.notes);
    if (reader.failed()) return error;
    return report;
}

Result<Report> Report::load(const std::string& path) {
    SIDESTEP_TRY(auto text, read_text(path, max_report_bytes));
    return from_json(text, path);
}

}  // namespace sidestep::bench
