#include "backends/s3/words.hpp"

#include <cctype>

#include <fmt/format.h>

namespace sidestep::backends::s3 {
namespace {

int digit(char letter) {
    if (letter >= '0' && letter <= '9') return letter - '0';
    if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
    if (letter >= 'A' && letter <= 'F') return letter - 'A' + 10;
    return -1;
}

}  // namespace

Name Name::of(std::string_view path) {
    const std::size_t slash = path.find('/');
    if (slash == std::string_view::npos) return {std::string(path), {}};
    return {std::string(path.substr(0, slash)), std::string(path.substr(slash + 1))};
}

std::string Name::to_string() const {
    return fmt::format("s3://{}{}{}", bucket, key.empty() ? "" : "/", key);
}

std::string escaped(std::string_view text, bool keep_slashes) {
    std::string made;
    for (const char letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        const bool plain = byte < 128 && (std::isalnum(byte) != 0 ||
                                          std::string_view("-_.~").find(letter) != std::string_view::npos);
        if (plain || (keep_slashes && letter == '/'))
            made += letter;
        else
            made += fmt::format("%{:02X}", byte);
    }
    return made;
}

std::string unescaped(std::string_view text) {
    std::string made;
    for (std::size_t at = 0; at < text.size(); ++at) {
        if (text[at] == '%' && at + 2 < text.size() && digit(text[at + 1]) >= 0 && digit(text[at + 2]) >= 0) {
            made += static_cast<char>(16 * digit(text[at + 1]) + digit(text[at + 2]));
            at += 2;
        } else {
            made += text[at] == '+' ? ' ' : text[at];
        }
    }
    return made;
}

std::vector<std::string> elements(std::string_view xml, std::string_view name) {
    std::vector<std::string> found;
    const std::string begin = fmt::format("<{}>", name);
    const std::string end = fmt::format("</{}>", name);
    for (std::size_t at = xml.find(begin); at != std::string_view::npos; at = xml.find(begin, at)) {
        at += begin.size();
        const std::size_t last = xml.find(end, at);
        if (last == std::string_view::npos) break;
        found.emplace_back(xml.substr(at, last - at));
        at = last;
    }
    return found;
}

std::optional<std::string> element(std::string_view xml, std::string_view name) {
    auto all = elements(xml, name);
    return all.empty() ? std::nullopt : std::optional(std::move(all.front()));
}

}  // namespace sidestep::backends::s3
