#include "wire/etcd.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "base/try.hpp"

namespace sidestep::wire {
namespace {

constexpr std::string_view base64_letters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
// The addresses of one node take less.
constexpr std::size_t longest_answer = 64 << 10;
constexpr std::size_t longest_prefix = 1024;

std::string to_base64(std::string_view bytes) {
    std::string text;
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
        unsigned group = 0;
        for (std::size_t i = 0; i < 3; ++i)
            group = group << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
        for (std::size_t i = 0; i < 4; ++i)
            text += at + i > bytes.size() ? '=' : base64_letters[group >> (18 - 6 * i) & 63];
    }
    return text;
}

std::optional<std::string> from_base64(std::string_view text) {
    if (text.size() % 4 != 0) return std::nullopt;
    for (int fill = 0; fill < 2 && text.ends_with('='); ++fill) text.remove_suffix(1);
    std::string bytes;
    unsigned group = 0;
    int bits = 0;
    for (const char letter : text) {
        const std::size_t number = base64_letters.find(letter);
        if (number == std::string_view::npos) return std::nullopt;
        group = group << 6 | static_cast<unsigned>(number);
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        bytes += static_cast<char>(group >> bits & 255);
    }
    return bytes;
}

Error not_etcd(std::string_view text, std::string why) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' does not say where etcd is: {}", text, why),
                 {},
                 "write etcd://HOST:2379/PREFIX, several members as etcd://A:2379,B:2379/PREFIX"};
}

Error not_an_answer() {
    return Error{ErrorCode::io_error, "what answers is not etcd's gateway", {}, "etcd 3.4 or newer has it"};
}

// A line end is easily put behind an address.
std::string_view without_end(std::string_view text) {
    return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

std::string names_of(const std::vector<HostPort>& members) {
    std::vector<std::string> names;
    for (const HostPort& one : members) names.push_back(one.to_string());
    return fmt::format("etcd at {}", fmt::join(names, ", "));
}

}  // namespace

Result<EtcdPlace> parse_etcd(std::string_view text) {
    const std::string_view rest =
        text.starts_with(etcd_scheme) ? text.substr(etcd_scheme.size()) : std::string_view();
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    EtcdPlace place;
    for (std::size_t begin = 0; begin <= slash;) {
        const std::size_t end = std::min(rest.find(',', begin), slash);
        const std::string_view part = rest.substr(begin, end - begin);
        auto member = parse_host_port(part, etcd_port);
        if (!member) return not_etcd(text, member.error().message);
        if (member->port == 0) return not_etcd(text, "nobody can be reached at port 0");
        place.members.push_back(std::move(*member));
        begin = end + 1;
    }
    if (place.members.size() > Etcd::most_members)
        return not_etcd(text, fmt::format("{} members are enough", Etcd::most_members));
    std::string_view prefix = rest.substr(slash);
    while (prefix.ends_with('/')) prefix.remove_suffix(1);
    if (prefix.empty()) return not_etcd(text, "it names no keys");
    const bool odd = std::any_of(prefix.begin(), prefix.end(), [](char letter) {
        return letter <= ' ' || letter > '~' ||
               std::string_view("?#\"\\").find(letter) != std::string_view::npos;
    });
    if (odd || prefix.size() > longest_prefix)
        return not_etcd(text, "keys are made of printable letters without blanks, '?', '#', quotes and '\\'");
    place.prefix = std::string(prefix);
    return place;
}

// {"header":{...},"kvs":[{"key":"...","value":"...",...}],"count":"1"}, without "kvs" where there is none.
Result<std::optional<std::string>> parse_range_answer(std::string_view body) {
    if (body.size() > longest_answer) return not_an_answer();
    const auto answer = nlohmann::json::parse(body, nullptr, false);
    if (!answer.is_object() || !answer.contains("header")) return not_an_answer();
    const auto kvs = answer.find("kvs");
    if (kvs == answer.end()) return std::optional<std::string>();
    if (!kvs->is_array() || kvs->size() != 1 || !kvs->front().is_object()) return not_an_answer();
    // Of an empty value nothing is told.
    const auto value = kvs->front().find("value");
    if (value == kvs->front().end()) return std::optional(std::string());
    if (!value->is_string()) return not_an_answer();
    auto bytes = from_base64(value->get_ref<const std::string&>());
    if (!bytes) return not_an_answer();
    return bytes;
}

Result<std::shared_ptr<driver::HttpClient>> Etcd::client() {
    std::lock_guard lock(mutex_);
    if (!client_) {
        SIDESTEP_TRY(client_, driver::HttpClient::load());
    }
    return client_;
}

Result<std::optional<std::string>> Etcd::ask(driver::HttpClient& client, const HostPort& member,
                                             const std::string& key) const {
    driver::HttpRequest request;
    request.url = fmt::format("http://{}/v3/kv/range", member.to_string());
    request.headers = {"Content-Type: application/json"};
    request.post = fmt::format(R"({{"key":"{}"}})", to_base64(key));
    request.limit = patience;
    const driver::HttpAnswer answer = client.get(request);
    if (answer.broken) return *answer.broken;
    if (answer.status != 200)
        return Error{ErrorCode::io_error,
                     fmt::format("it answers with status {}", answer.status),
                     {},
                     "etcd is asked without a password: let the keys be read by all"};
    return parse_range_answer(answer.body);
}

Result<NodeAddress> Etcd::find(const std::string& node) {
    const std::string key = place_.prefix + "/" + node;
    const auto wrong = [&](const Error& error, const std::vector<HostPort>& members) {
        return Error{error.code, fmt::format("{}: {}", names_of(members), error.message), key, error.hint};
    };
    auto with = client();
    if (!with) return wrong(with.error(), place_.members);
    std::optional<Error> failed;
    const std::size_t first = answered_.load();
    for (std::size_t i = 0; i < place_.members.size(); ++i) {
        const std::size_t which = (first + i) % place_.members.size();
        const HostPort& member = place_.members[which];
        const auto value = ask(**with, member, key);
        if (!value) {
            failed = value.error();
            continue;
        }
        answered_.store(which);
        if (!*value)
            return wrong({ErrorCode::not_found,
                          "it has no such key",
                          {},
                          fmt::format("etcdctl put {} HOST:PORT", key)},
                         {member});
        auto at = parse_addresses(without_end(**value));
        if (!at) {
            Error error = at.error();
            base::make_printable(error.message);
            return wrong(error, {member});
        }
        return NodeAddress{node, std::move(*at)};
    }
    return wrong(failed.value_or(not_an_answer()), place_.members);
}

}  // namespace sidestep::wire
