#include "checkpoint/names.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/utf8.hpp"
#include "checkpoint/manifest.hpp"

namespace sidestep::checkpoint {
namespace {

bool eight_ascii(const char* text) {
    std::uint64_t word = 0;
    std::memcpy(&word, text, sizeof word);
    return (word & 0x8080808080808080u) == 0;
}

bool wants_escape(char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\';
}

std::string escaped(char c) {
    switch (c) {
        case '\b':
            return "\\b";
        case '\f':
            return "\\f";
        case '\n':
            return "\\n";
        case '\r':
            return "\\r";
        case '\t':
            return "\\t";
        case '"':
        case '\\':
            return {'\\', c};
        default:
            return fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    }
}

std::uint64_t hash_of(std::string_view name) {
    return hash_block(name.data(), name.size());
}

}  // namespace

std::string base_name(std::string_view path) {
    return std::string(path.substr(path.rfind('/') + 1));
}

std::optional<std::size_t> first_bad_utf8(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        if (text.size() - at >= 8 && eight_ascii(text.data() + at)) {
            at += 8;
            continue;
        }
        const std::size_t bytes = base::utf8_bytes(text.substr(at));
        if (bytes == 0) return at;
        at += bytes;
    }
    return std::nullopt;
}

std::string shown(std::string_view text, std::size_t max) {
    std::string words = "\"";
    std::size_t at = 0;
    while (at < text.size() && at < max) {
        const std::size_t bytes = base::utf8_bytes(text.substr(at));
        const auto first = static_cast<unsigned char>(text[at]);
        if (bytes == 0 || first < 0x20 || first == 0x7F) {
            words += fmt::format("\\x{:02x}", first);
            at += 1;
        } else {
            words += text.substr(at, bytes);
            at += bytes;
        }
    }
    words += at < text.size() ? "...\"" : "\"";
    return words;
}

// Metadata may have 100 MB, so what needs no escape is copied as it stands.
std::string json_text(std::string_view text) {
    if (first_bad_utf8(text))
        return nlohmann::json(std::string(text))
            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    std::string json;
    json.reserve(text.size() + text.size() / 16 + 2);
    json += '"';
    for (std::size_t at = 0;;) {
        const std::size_t plain = at;
        while (at < text.size() && !wants_escape(text[at])) ++at;
        json.append(text, plain, at - plain);
        if (at == text.size()) break;
        json += escaped(text[at++]);
    }
    return json += '"';
}

NameTable::NameTable(std::size_t count, const NameOf& name) {
    entries_.reserve(count);
    for (std::size_t i = 0; i < count; ++i)
        entries_.push_back({hash_of(name(i)), static_cast<std::uint32_t>(i)});
    std::sort(entries_.begin(), entries_.end(), [&name](const Entry& a, const Entry& b) {
        if (a.hash != b.hash) return a.hash < b.hash;
        if (const int order = name(a.number).compare(name(b.number)); order != 0) return order < 0;
        return a.number < b.number;
    });
}

std::optional<std::size_t> NameTable::find(std::string_view wanted, const NameOf& name) const {
    const std::uint64_t hash = hash_of(wanted);
    const auto found =
        std::lower_bound(entries_.begin(), entries_.end(), wanted, [&](const Entry& entry, std::string_view) {
            return entry.hash != hash ? entry.hash < hash : name(entry.number).compare(wanted) < 0;
        });
    if (found == entries_.end() || found->hash != hash || name(found->number) != wanted) return std::nullopt;
    return found->number;
}

std::optional<std::pair<std::size_t, std::size_t>> NameTable::twice(const NameOf& name) const {
    std::optional<std::pair<std::size_t, std::size_t>> lowest;
    for (std::size_t i = 1; i < entries_.size(); ++i) {
        const Entry& a = entries_[i - 1];
        const Entry& b = entries_[i];
        if (a.hash != b.hash || name(a.number) != name(b.number)) continue;
        if (!lowest || b.number < lowest->second) lowest = {a.number, b.number};
    }
    return lowest;
}

}  // namespace sidestep::checkpoint
