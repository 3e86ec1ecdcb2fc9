#include "base/printable.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace sidestep::base {

void make_printable(std::string& text) {
    // How many bytes at `at` a terminal could obey; 0 where it would print them.
    const auto obeyed = [&text](std::size_t at) -> std::size_t {
        const auto byte = static_cast<unsigned char>(text[at]);
        if (byte < 0x20 || byte == 0x7f) return 1;
        if (byte != 0xc2 || at + 1 == text.size()) return 0;
        const auto next = static_cast<unsigned char>(text[at + 1]);
        return next >= 0x80 && next < 0xa0 ? 2 : 0;
    };
    std::size_t at = 0;
    while (at < text.size() && obeyed(at) == 0) ++at;
    if (at == text.size()) return;
    std::string shown = text.substr(0, at);
    while (at < text.size()) {
        const std::size_t bytes = obeyed(at);
        if (bytes == 0)
            shown += text[at];
        else
            shown.append(text[at] == '\t' ? " " : "\xef\xbf\xbd");
        at += std::max<std::size_t>(bytes, 1);
    }
    text = std::move(shown);
}

}  // namespace sidestep::base
