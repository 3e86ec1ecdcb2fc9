#include "backends/cufile/settings.hpp"

#include <algorithm>
#include <string>

namespace sidestep::backends::cufile {
namespace {

// The end of a string in quotes that begins at `at`, or of the text.
std::size_t end_of_string(std::string_view json, std::size_t at) {
    for (std::size_t i = at + 1; i < json.size(); ++i) {
        if (json[i] == '\\')
            ++i;
        else if (json[i] == '"')
            return i + 1;
    }
    return json.size();
}

// Without blanks and comments.
std::string bare(std::string_view json) {
    std::string text;
    for (std::size_t i = 0; i < json.size();) {
        std::size_t next = i + 1;
        if (json[i] == '"') {
            next = end_of_string(json, i);
            text.append(json.substr(i, next - i));
        } else if (json.substr(i, 2) == "//") {
            next = std::min(json.find('\n', i), json.size());
        } else if (json.substr(i, 2) == "/*") {
            const std::size_t end = json.find("*/", i + 2);
            next = end == std::string_view::npos ? json.size() : end + 2;
        } else if (std::string_view(" \t\r\n").find(json[i]) == std::string_view::npos) {
            text += json[i];
        }
        i = next;
    }
    return text;
}

}  // namespace

bool asks_for_p2pdma(std::string_view json) {
    return bare(json).find("\"use_pci_p2pdma\":true") != std::string::npos;
}

}  // namespace sidestep::backends::cufile
