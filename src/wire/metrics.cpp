#include "wire/metrics.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <sidestep/version.hpp>

namespace sidestep::wire {
namespace {

constexpr std::array<const char*, Counters::words> word_names{
    "",       "hello", "answer", "describe", "allocate", "free",  "attach", "commit", "report",
    "detach", "leave", "lend",   "take",     "reach",    "trial", "tell",   "list",   "notify"};
constexpr std::array<const char*, refusals> refusal_names{"key",         "silent", "full",
                                                          "data_socket", "probe",  "other"};
constexpr std::array<const char*, Counters::kinds> kind_names{"host", "gpu", "file", "shared", "p2pmem"};

// A label's value between its quotes. Names of machines are ASCII; anything else is not worth a wrong byte.
std::string quoted(const std::string& text) {
    std::string value;
    for (const char c : text) {
        if (c == '"' || c == '\\') value += '\\';
        value += c < ' ' || c > '~' ? '?' : c;
    }
    return value;
}

std::string outcome_name(std::size_t outcome) {
    if (outcome == 0) return "ok";
    std::string name = to_string(static_cast<ErrorCode>(outcome));
    std::replace(name.begin(), name.end(), ' ', '_');
    return name;
}

std::string head(const char* name, const char* type, const char* help) {
    return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

std::string gauge(const char* name, const char* help, std::size_t value) {
    return head(name, "gauge", help) + fmt::format("{} {}\n", name, value);
}

std::string bytes_text(const Counters& counters, const NodeState& state) {
    std::string text =
        head("sidestep_link_bytes_total", "counter", "Bytes that came from clients, and went to them.");
    text += fmt::format("sidestep_link_bytes_total{{direction=\"received\"}} {}\n", state.received);
    text += fmt::format("sidestep_link_bytes_total{{direction=\"sent\"}} {}\n", state.sent);
    text += head("sidestep_place_bytes_total", "counter", "Bytes to and from places, by their kind.");
    for (std::size_t kind = 0; kind < Counters::kinds; ++kind) {
        const Traffic& traffic = counters.traffic_of(kind);
        const auto line = [&](const char* direction, Bytes bytes) {
            return fmt::format("sidestep_place_bytes_total{{place=\"{}\",direction=\"{}\"}} {}\n",
                               kind_names[kind], direction, bytes);
        };
        text += line("received", traffic.received.load()) + line("sent", traffic.sent.load());
    }
    return text;
}

// Every word has a line for what went well; those that failed have one for each error that there was.
std::string requests_text(const Counters& counters) {
    std::string text = head("sidestep_requests_total", "counter", "Questions of clients, by outcome.");
    for (std::size_t word = 1; word < Counters::words; ++word) {
        if (word == static_cast<std::size_t>(Word::answer) || word == static_cast<std::size_t>(Word::leave))
            continue;
        for (std::size_t outcome = 0; outcome < Counters::outcomes; ++outcome) {
            const std::uint64_t count = counters.answers(word, outcome);
            if (outcome == 0 || count > 0)
                text += fmt::format("sidestep_requests_total{{word=\"{}\",outcome=\"{}\"}} {}\n",
                                    word_names[word], outcome_name(outcome), count);
        }
    }
    return text;
}

std::string times_text(const Counters& counters) {
    std::string text = head("sidestep_request_seconds", "histogram",
                            "From the arrival of a question until its answer was ready.");
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i <= Counters::bounds.size(); ++i) {
        sum += counters.times(i);
        const std::string bound =
            i < Counters::bounds.size() ? fmt::format("{}", Counters::bounds[i]) : std::string("+Inf");
        text += fmt::format("sidestep_request_seconds_bucket{{le=\"{}\"}} {}\n", bound, sum);
    }
    text += fmt::format("sidestep_request_seconds_sum {}\n", counters.seconds());
    return text + fmt::format("sidestep_request_seconds_count {}\n", sum);
}

}  // namespace

std::string metrics_text(const Counters& counters, const NodeState& state) {
    std::string text = head("sidestep_node_info", "gauge", "What the node is called, and what it runs.");
    text += fmt::format("sidestep_node_info{{node=\"{}\",version=\"{}\"}} 1\n", quoted(state.node),
                        quoted(version()));
    text += gauge("sidestep_clients", "Clients that are connected.", state.clients);
    text += gauge("sidestep_probes", "Plain sockets that clients measure with.", state.probes);
    text += bytes_text(counters, state) + requests_text(counters);
    text += head("sidestep_refused_total", "counter", "Connections that were turned away.");
    for (std::size_t why = 0; why < refusals; ++why)
        text += fmt::format("sidestep_refused_total{{reason=\"{}\"}} {}\n", refusal_names[why],
                            counters.refusals_of(static_cast<Refusal>(why)));
    return text + times_text(counters);
}

}  // namespace sidestep::wire
