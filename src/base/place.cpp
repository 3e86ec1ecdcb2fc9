#include <charconv>
#include <tuple>

#include <fmt/format.h>
#include <sidestep/memory_kind.hpp>
#include <sidestep/place.hpp>

#include "base/object_store.hpp"

namespace sidestep {
namespace {

constexpr std::string_view forms =
    "a place is host, host:N, gpu:N, file:PATH, s3://BUCKET/KEY, shared:NAME, p2pmem:BUS-ID, or NODE/ before "
    "one of these";

Error not_a_place(std::string_view text, std::string hint = std::string(forms)) {
    return Error{ErrorCode::invalid_argument, fmt::format("'{}' is not a place", text), {}, std::move(hint)};
}

bool is_name(std::string_view text) {
    return !text.empty() && text.find_first_not_of(
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                "0123456789._-") == std::string_view::npos;
}

// A whole number without sign or leading zeros, at most 999999.
bool parse_index(std::string_view text, int& index) {
    if (text.empty() || text.size() > 6 || (text.size() > 1 && text.front() == '0')) return false;
    if (text.front() < '0' || text.front() > '9') return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    return error == std::errc{} && end == text.data() + text.size();
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

// "0000:03:00.0"
bool is_bus_id(std::string_view text) {
    constexpr std::string_view pattern = "xxxx:xx:xx.x";
    if (text.size() != pattern.size()) return false;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const bool digit = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
        if (pattern[i] == 'x' ? !digit : text[i] != pattern[i]) return false;
    }
    return true;
}

std::string as_a_file(std::string_view text) {
    std::string words = fmt::format("for a file write file:{}", text);
    const std::string_view node = text.substr(0, text.find('/'));
    if (node.size() < text.size() && is_name(node) && node.front() != '.')
        words += fmt::format(", for one of node {0} {0}/file:{1}", node, text.substr(node.size()));
    return words;
}

// One of this machine.
Result<Place> parse_local(std::string_view text) {
    std::string_view rest = text;
    if (rest == "host") return Place::host();
    int index = 0;
    if (take_prefix(rest, "host:"))
        return parse_index(rest, index) ? Result<Place>(Place::host(index))
                                        : not_a_place(text, "host: is followed by the number of a NUMA node");
    if (take_prefix(rest, "gpu:"))
        return parse_index(rest, index) ? Result<Place>(Place::gpu(index))
                                        : not_a_place(text, "gpu: is followed by the number of a GPU");
    if (take_prefix(rest, "file:")) {
        if (rest.empty()) return not_a_place(text, "file: is followed by a path");
        if (rest.find('\0') != std::string_view::npos) return not_a_place(text, "a path holds no zero byte");
        return Place::file(std::string(rest));
    }
    if (take_prefix(rest, "s3://")) {
        if (rest.empty() || rest.front() == '/') return not_a_place(text, "s3:// is followed by a bucket");
        if (rest.find('\0') != std::string_view::npos) return not_a_place(text, "a key holds no zero byte");
        return Place::file(std::string(rest)).on(std::string(base::object_store));
    }
    if (take_prefix(rest, "shared:"))
        return is_name(rest)
                   ? Result<Place>(Place::shared(std::string(rest)))
                   : not_a_place(text, "shared: is followed by a name of letters, digits, '.', '_' and '-'");
    if (take_prefix(rest, "p2pmem:"))
        return is_bus_id(rest)
                   ? Result<Place>(Place::p2pmem(std::string(rest)))
                   : not_a_place(text, "p2pmem: is followed by a bus id such as 0000:03:00.0, in lower case");
    if (text.find_first_of("/.") != std::string_view::npos) return not_a_place(text, as_a_file(text));
    return not_a_place(text);
}

}  // namespace

Result<Place> Place::parse(std::string_view text) {
    auto local = parse_local(text);
    const std::size_t slash = text.find('/');
    if (local || slash == std::string_view::npos || !is_name(text.substr(0, slash))) return local;
    const auto of_node = parse_local(text.substr(slash + 1));
    return of_node && of_node->node().empty() ? of_node->on(std::string(text.substr(0, slash))) : local;
}

Place Place::on(std::string node) const {
    Place place(kind_, index_, {});
    if (!node.empty() || !path().empty())
        place.names_ = std::make_shared<const Names>(Names{path(), std::move(node)});
    return place;
}

Place::Place(PlaceKind kind, int index, std::string path) : kind_(kind), index_(index) {
    if (!path.empty()) names_ = std::make_shared<const Names>(Names{std::move(path), {}});
}

bool Place::operator==(const Place& other) const {
    return kind_ == other.kind_ && index_ == other.index_ &&
           (names_ == other.names_ || (path() == other.path() && node() == other.node()));
}

std::strong_ordering Place::operator<=>(const Place& other) const {
    return std::tie(kind_, index_, path(), node()) <=>
           std::tie(other.kind_, other.index_, other.path(), other.node());
}

std::string Place::to_string() const {
    if (base::is_object(*this)) return "s3://" + path();
    std::string text = node().empty() ? "" : node() + "/";
    switch (kind_) {
        case PlaceKind::host:
            return text + (index_ < 0 ? "host" : fmt::format("host:{}", index_));
        case PlaceKind::gpu:
            return text + fmt::format("gpu:{}", index_);
        case PlaceKind::file:
            return text + "file:" + path();
        case PlaceKind::shared:
            return text + "shared:" + path();
        case PlaceKind::p2pmem:
            return text + "p2pmem:" + path();
    }
    return text;
}

std::string_view to_string(MemoryKind kind) {
    switch (kind) {
        case MemoryKind::automatic:
            return "automatic";
        case MemoryKind::pageable:
            return "pageable";
        case MemoryKind::pinned:
            return "pinned";
        case MemoryKind::device:
            return "device";
        case MemoryKind::pool:
            return "pool";
        case MemoryKind::vmm:
            return "vmm";
        case MemoryKind::managed:
            return "managed";
        case MemoryKind::storage:
            return "storage";
        case MemoryKind::p2pmem:
            return "p2pmem";
    }
    return "unknown";
}

}  // namespace sidestep
