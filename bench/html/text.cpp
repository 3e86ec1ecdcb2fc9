#include "bench/html/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sidestep::bench::html {

namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";

// Length of the character that `text` begins with; 0 where its bytes are no UTF-8 (RFC 3629, table 3-7 of the
// Unicode standard).
std::size_t character_length(std::string_view text) {
    const auto byte = [&](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
    };
    const auto follows = [&](std::size_t i, unsigned min = 0x80, unsigned max = 0xbf) {
        return byte(i) >= min && byte(i) <= max;
    };
    const unsigned lead = byte(0);
    if (lead < 0x80) return 1;
    if (lead >= 0xc2 && lead <= 0xdf) return follows(1) ? 2 : 0;
    if (lead >= 0xe0 && lead <= 0xef) {
        const bool fits = lead == 0xe0   ? follows(1, 0xa0)
                          : lead == 0xed ? follows(1, 0x80, 0x9f)
                                         : follows(1);
        return fits && follows(2) ? 3 : 0;
    }
    if (lead >= 0xf0 && lead <= 0xf4) {
        const bool fits = lead == 0xf0   ? follows(1, 0x90)
                          : lead == 0xf4 ? follows(1, 0x80, 0x8f)
                                         : follows(1);
        return fits && follows(2) && follows(3) ? 4 : 0;
    }
    return 0;
}

bool is_allowed(std::string_view one) {
    const auto first = static_cast<unsigned char>(one[0]);
    if (one.size() == 1) return (first >= 0x20 && first != 0x7f) || first == '\n' || first == '\t';
    return one != "\xef\xbf\xbe" && one != "\xef\xbf\xbf";  // no characters in XML
}

void append_escaped(std::string_view one, std::string& out) {
    switch (one[0]) {
        case '&':
            out += "&amp;";
            return;
        case '<':
            out += "&lt;";
            return;
        case '>':
            out += "&gt;";
            return;
        case '"':
            out += "&quot;";
            return;
        case '\'':
            out += "&#39;";
            return;
        default:
            out += one;
    }
}

std::string with_thousands(double value) {
    const std::string digits = fmt::format("{:.0f}", std::abs(value));
    std::string text = value < 0 ? "-" : "";
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
        text += digits[i];
    }
    return text;
}

void append_part(std::string& text, const std::string& part) {
    if (part.empty()) return;
    if (!text.empty()) text += " · ";
    text += part;
}

}  // namespace

std::string escape(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        const std::size_t length = character_length(text);
        const std::string_view one = text.substr(0, std::max<std::size_t>(length, 1));
        if (length == 0 || !is_allowed(one))
            out += replacement;
        else
            append_escaped(one, out);
        text.remove_prefix(one.size());
    }
    return out;
}

std::string number(double value) {
    if (!std::isfinite(value)) return "no number";
    const double size = std::abs(value);
    if (size == 0) return "0";
    if (size >= 1e15 || size < 1e-6) return fmt::format("{:.3g}", value);
    if (size >= 999.5) return with_thousands(value);
    const int decimals = std::max(0, 2 - static_cast<int>(std::floor(std::log10(size))));
    return fmt::format("{:.{}f}", value, decimals);
}

std::string percent(double share) {
    return std::isfinite(share) ? fmt::format("{:.1f} %", share * 100) : "no number";
}

std::string coordinate(double value) {
    return fmt::format("{:g}", std::round(value * 10) / 10);
}

bool has_share(const Figure& figure) {
    if (figure.measured.empty() || !std::isfinite(figure.limit) || figure.limit <= 0) return false;
    const double share = figure.share_of_limit();
    return std::isfinite(share) && share > 0;
}

std::string median_text(const Figure& figure) {
    return figure.measured.empty() ? "no samples" : number(figure.measured.median());
}

std::string spread_text(const Samples& samples) {
    if (samples.values.size() < 2) return "";
    return fmt::format("[{} .. {}]", number(samples.min()), number(samples.max()));
}

std::string threshold_text(const Figure& figure) {
    // As somebody wrote it: no digits are added or taken.
    const std::string value =
        std::isfinite(figure.threshold) ? fmt::format("{}", figure.threshold) : number(figure.threshold);
    return fmt::format("{} {}", figure.more_is_better ? "at least" : "at most", value);
}

std::string size_text(const Figure& figure) {
    return figure.bytes == 0 ? "" : format_bytes(figure.bytes);
}

std::string describe(const Figure& figure) {
    std::string text = figure.what;
    append_part(text, size_text(figure));
    std::string value = fmt::format("{} {}", median_text(figure), figure.unit);
    if (const std::string spread = spread_text(figure.measured); !spread.empty())
        value += fmt::format(" {}, {} samples", spread, figure.measured.values.size());
    append_part(text, value);
    if (figure.limit > 0) {
        std::string limit = has_share(figure) ? percent(figure.share_of_limit()) + " of " : "limit ";
        limit += fmt::format("{} {}", number(figure.limit), figure.unit);
        if (!figure.limit_source.empty()) limit += fmt::format(" ({})", figure.limit_source);
        append_part(text, limit);
    }
    for (const Peer& peer : figure.peers)
        append_part(text, fmt::format("{} {}", peer.name,
                                      peer.samples.empty() ? "no samples" : number(peer.samples.median())));
    if (figure.verdict != Verdict::none)
        append_part(text, fmt::format("threshold {}: {}", threshold_text(figure),
                                      figure.verdict == Verdict::pass ? "passed" : "failed"));
    if (!figure.path.empty()) append_part(text, fmt::format("path {}", figure.path));
    return text;
}

std::string json_for_script(const std::string& json) {
    // In JSON these three stand only within strings, where they may be written as escapes.
    std::string out;
    out.reserve(json.size());
    for (const char one : json) {
        if (one == '<')
            out += "\\u003c";
        else if (one == '>')
            out += "\\u003e";
        else if (one == '&')
            out += "\\u0026";
        else
            out += one;
    }
    return out;
}

}  // namespace sidestep::bench::html
