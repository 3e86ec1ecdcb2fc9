#include "wire/address.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <sidestep/place.hpp>
#include "base/try.hpp"
#include "driver/files.hpp"

namespace sidestep::wire {
namespace {

constexpr std::string_view decimal_digits = "0123456789";
constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr std::size_t longest_host = 253;  // RFC 1035
constexpr std::size_t longest_label = 63;
constexpr Bytes longest_file = 1_MiB;
constexpr std::size_t most_ways = 16;
constexpr const char* file_form = "name a file with a line NAME=HOST:PORT for each node";

Error not_an_address(std::string_view text, std::string hint) {
    return Error{
        ErrorCode::invalid_argument, fmt::format("'{}' is not an address", text), {}, std::move(hint)};
}

bool made_of(std::string_view text, std::string_view characters) {
    return text.find_first_not_of(characters) == std::string_view::npos;
}

// The text before the next `end`, which is taken off with it.
std::string_view take_until(std::string_view& rest, char end) {
    const std::size_t at = std::min(rest.find(end), rest.size());
    const std::string_view taken = rest.substr(0, at);
    rest.remove_prefix(std::min(at + 1, rest.size()));
    return taken;
}

// A whole number without sign or leading zeros, at most `max`.
bool parse_number(std::string_view text, unsigned max, unsigned& number) {
    if (text.empty() || text.size() > 5 || !made_of(text, decimal_digits)) return false;
    if (text.size() > 1 && text.front() == '0') return false;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number <= max;
}

// Four numbers. Resolvers also take "10.2", "0x7f000001" and octal numbers for addresses, which people do not expect.
bool is_ipv4(std::string_view text) {
    if (std::count(text.begin(), text.end(), '.') != 3) return false;
    for (int part = 0; part < 4; ++part) {
        unsigned number = 0;
        if (!parse_number(take_until(text, '.'), 255, number)) return false;
    }
    return true;
}

// Groups of up to four hexadecimal digits with ':' between them, the last two perhaps as an IPv4 number. Counts them;
// -1 where it is something else. Empty text has none.
int count_groups(std::string_view text, bool ends_here) {
    if (text.empty()) return 0;
    int groups = 0;
    for (;;) {
        const std::size_t colon = text.find(':');
        const std::string_view group = text.substr(0, colon);
        const bool last = colon == std::string_view::npos;
        if (last && ends_here && is_ipv4(group)) return groups + 2;
        if (group.empty() || group.size() > 4 || !made_of(group, "0123456789abcdefABCDEF")) return -1;
        ++groups;
        if (last) return groups;
        text.remove_prefix(colon + 1);
    }
}

// "::1", "fe80::1%eth0", "::ffff:10.0.0.2".
bool is_ipv6(std::string_view text) {
    const std::size_t percent = text.find('%');
    if (percent != std::string_view::npos) {
        const std::string_view zone = text.substr(percent + 1);
        if (zone.empty() || zone.size() > 15 ||
            !made_of(zone.substr(0, 1), fmt::format("{}{}", letters, decimal_digits)) ||
            !made_of(zone, fmt::format("{}{}._-", letters, decimal_digits)))
            return false;
        text = text.substr(0, percent);
    }
    const std::size_t gap = text.find("::");
    if (gap == std::string_view::npos) return count_groups(text, true) == 8;
    const int before = count_groups(text.substr(0, gap), false);
    const int after = count_groups(text.substr(gap + 2), true);
    return before >= 0 && after >= 0 && before + after <= 7;
}

// Names as resolvers take them, and IPv4 numbers.
bool is_host(std::string_view text) {
    if (text.empty() || text.size() > longest_host) return false;
    const std::string_view whole = text;
    if (text.back() == '.') text.remove_suffix(1);  // a name that is complete
    std::string_view label;
    do {
        label = take_until(text, '.');
        if (label.empty() || label.size() > longest_label || label.front() == '-' ||
            !made_of(label, fmt::format("{}{}_-", letters, decimal_digits)))
            return false;
    } while (!text.empty());
    // A name that ends in a number is one of the odd forms of IPv4, or a port without a host.
    return !made_of(label, decimal_digits) || is_ipv4(whole);
}

Result<std::uint16_t> parse_port(std::string_view whole, std::string_view text) {
    unsigned port = 0;
    if (parse_number(text, 65535, port)) return static_cast<std::uint16_t>(port);
    return not_an_address(whole, "a port is a number up to 65535");
}

std::string_view without_blanks(std::string_view text) {
    constexpr std::string_view blanks = " \t\r";
    text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
    return text.substr(0, text.find_last_not_of(blanks) + 1);
}

// The same error, saying first in which part of a longer text it is.
Error within(const std::string& part, Error error) {
    error.message = fmt::format("{}: {}", part, error.message);
    return error;
}

Result<void> add_way(std::vector<HostPort>& ways, const HostPort& way) {
    if (std::find(ways.begin(), ways.end(), way) != ways.end())
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is there twice", way.to_string()),
                     {},
                     "give each address of a node once"};
    if (ways.size() >= most_ways)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("a node has more than {} addresses", most_ways),
                     {},
                     "leave some out"};
    ways.push_back(way);
    return {};
}

// Nodes as they come, each name once, with all its addresses.
class NodeList {
public:
    // What `text` says; `part` is where that stands.
    Result<void> add(std::string_view text, const std::string& part) {
        auto node = parse_node(text);
        if (!node) return within(part, node.error());
        const auto [known, is_new] = nodes_by_name_.emplace(node->name, nodes_.size());
        if (is_new) {
            nodes_.push_back(std::move(*node));
            return {};
        }
        for (const HostPort& way : node->at)
            if (auto added = add_way(nodes_[known->second].at, way); !added)
                return within(part, added.error());
        return {};
    }
    std::vector<NodeAddress> take() { return std::move(nodes_); }

private:
    std::vector<NodeAddress> nodes_;
    std::map<std::string, std::size_t> nodes_by_name_;
};

Result<std::string> read_small_file(const std::string& path) {
    if (path.find('\0') != std::string::npos)
        return Error{
            ErrorCode::invalid_argument, "the path of a list of nodes holds a zero byte", {}, file_form};
    auto opened = driver::open_to_read(path);
    if (!opened) {
        Error error = opened.error();
        if (error.hint.empty()) error.hint = file_form;
        return error;
    }
    const driver::Fd fd = std::move(*opened);
    SIDESTEP_TRY(const driver::FileFacts facts, driver::file_facts(fd, path));
    if (facts.type != driver::FileType::regular || facts.size > longest_file)
        return Error{
            ErrorCode::invalid_argument,
            facts.type == driver::FileType::regular
                ? fmt::format("{} holds {}, too much for a list of nodes", path, format_bytes(facts.size))
                : fmt::format("{} is a {}, not a file", path, driver::to_string(facts.type)),
            {},
            file_form};
    std::string text(static_cast<std::size_t>(facts.size), '\0');
    SIDESTEP_CHECK(driver::read_range(fd, 0, text.data(), text.size(), path));
    return text;
}

}  // namespace

std::string HostPort::to_string() const {
    if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
    return fmt::format("{}:{}", host, port);
}

Result<HostPort> parse_host_port(std::string_view text, std::uint16_t port) {
    HostPort at{{}, port};
    std::string_view host = text;
    if (text.starts_with('[')) {
        const std::size_t end = text.find(']');
        host = end == std::string_view::npos ? std::string_view() : text.substr(1, end - 1);
        if (!is_ipv6(host))
            return not_an_address(text, "in brackets stands an IPv6 number, as in [::1]:47900");
        const std::string_view rest = text.substr(end + 1);
        if (!rest.empty() && !rest.starts_with(':'))
            return not_an_address(text, "after the bracket comes ':' and a port, or nothing");
        if (!rest.empty()) {
            SIDESTEP_TRY(at.port, parse_port(text, rest.substr(1)));
        }
    } else if (const std::size_t colon = text.find(':'); colon == text.rfind(':')) {
        host = text.substr(0, colon);
        if (!is_host(host))
            return not_an_address(text, "write HOST, HOST:PORT or [IPV6]:PORT, such as 10.0.0.2:47900");
        if (colon != std::string_view::npos) {
            SIDESTEP_TRY(at.port, parse_port(text, text.substr(colon + 1)));
        }
    } else if (!is_ipv6(host)) {
        return not_an_address(text, "an IPv6 number with a port is written [IPV6]:PORT, such as [::1]:47900");
    }
    at.host = std::string(host);
    return at;
}

Result<void> listen_at(const HostPort& at, std::vector<driver::TcpListener>& listeners,
                       std::vector<HostPort>& addresses, std::chrono::milliseconds limit) {
    SIDESTEP_TRY(const auto found, driver::SocketAddress::resolve(at.host, at.port, limit));
    const std::size_t before = listeners.size();
    std::optional<Error> lacked;
    for (const driver::SocketAddress& one : found) {
        auto listener = driver::TcpListener::bind(one);
        if (!listener) {
            if (listener.error().code != ErrorCode::unsupported) return listener.error();
            lacked = listener.error();
            continue;
        }
        SIDESTEP_TRY(const driver::SocketAddress bound, listener->local());
        SIDESTEP_TRY(HostPort there, parse_host_port(bound.to_string()));
        addresses.push_back(std::move(there));
        listeners.push_back(std::move(*listener));
    }
    if (!lacked || listeners.size() > before) return {};
    lacked->code = ErrorCode::invalid_argument;  // whoever named it has to name another
    return *lacked;
}

Result<NodeAddress> parse_node(std::string_view text) {
    const std::size_t sign = text.find('=');
    if (sign == std::string_view::npos)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("'{}' is not a node", text),
                     {},
                     "write NAME=HOST:PORT, such as node7=10.0.0.2:47900"};
    NodeAddress node;
    node.name = std::string(text.substr(0, sign));
    // What comes out as the name of a machine is one; "gpu:0" and "file:x" are read as something else.
    const auto place = Place::parse(node.name + "/host");
    if (!place || place->node() != node.name || node.name.empty())
        return Error{ErrorCode::invalid_argument,
                     fmt::format("'{}' is not the name of a node", node.name),
                     {},
                     "a name is made of letters, digits, '.', '_' and '-'"};
    SIDESTEP_TRY(node.at, parse_addresses(text.substr(sign + 1)));
    return node;
}

Result<std::vector<HostPort>> parse_addresses(std::string_view text, Ports ports) {
    std::vector<HostPort> ways;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        const std::string_view part = text.substr(begin, end - begin);
        SIDESTEP_TRY(const HostPort way, parse_host_port(part));
        if (way.port == 0 && ports == Ports::to_reach)
            return not_an_address(part, "nobody can be reached at port 0");
        SIDESTEP_CHECK(add_way(ways, way));
        begin = end + 1;
    }
    return ways;
}

Result<std::vector<NodeAddress>> parse_nodes(std::string_view text) {
    NodeList nodes;
    for (std::size_t number = 1, begin = 0; !text.empty() && begin <= text.size(); ++number) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        SIDESTEP_CHECK(nodes.add(text.substr(begin, end - begin), fmt::format("entry {}", number)));
        begin = end + 1;
    }
    return nodes.take();
}

Result<KnownNodes> read_nodes(const std::string& path) {
    SIDESTEP_TRY(const std::string text, read_small_file(path));
    NodeList nodes;
    KnownNodes known;
    std::string_view rest = text;
    for (std::size_t number = 1; !rest.empty(); ++number) {
        std::string_view line = take_until(rest, '\n');
        line = without_blanks(take_until(line, '#'));
        if (line.empty()) continue;
        const std::string part = fmt::format("{}:{}", path, number);
        if (!line.starts_with(etcd_scheme)) {
            SIDESTEP_CHECK(nodes.add(line, part));
        } else if (std::exchange(known.etcd, std::string(line)) != "") {
            return within(
                part,
                {ErrorCode::invalid_argument, "etcd is named twice", {}, "name its members in one line"});
        }
    }
    known.nodes = nodes.take();
    return known;
}

Result<KnownNodes> known_nodes(const std::string& text) {
    if (text.starts_with(etcd_scheme)) return KnownNodes{{}, text};
    if (!text.empty() && text.find('=') == std::string::npos) return read_nodes(text);
    SIDESTEP_TRY(auto nodes, parse_nodes(text));
    return KnownNodes{std::move(nodes), {}};
}

}  // namespace sidestep::wire
