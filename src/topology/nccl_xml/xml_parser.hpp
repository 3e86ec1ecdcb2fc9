// XML as a stream of elements, with limits. Files come from anywhere: document types, and with them
// entities, are refused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <sidestep/result.hpp>

namespace sidestep::topology::nccl_xml {

// What a file may hold at most. A dump of a machine has some hundred elements, each of some hundred bytes.
constexpr std::size_t largest_text = std::size_t{256} << 20;
constexpr std::size_t max_elements = 2'000'000;
constexpr int deepest = 64;
constexpr std::size_t max_attributes = 64;

// One start tag. Valid during XmlVisitor::open only.
struct XmlElement {
    std::string_view name;
    const char* const* attributes = nullptr;  // name, value, name, value, ..., nullptr
    std::size_t line = 0;

    // nullopt where the element has no such attribute.
    std::optional<std::string_view> attribute(std::string_view wanted) const;
};

class XmlVisitor {
public:
    virtual ~XmlVisitor() = default;
    // A failure ends the reading and is what parse_xml() returns.
    virtual Result<void> open(const XmlElement& element) = 0;
    virtual Result<void> close() = 0;
};

// Reads a whole text. Every problem is an ErrorCode::invalid_argument with `where` "line 12".
Result<void> parse_xml(std::string_view text, XmlVisitor& visitor);

// The start of a tag as messages quote it: <pci busid="0000:07:00.0">. Long values are cut.
std::string tag_text(std::string_view name, std::string_view key, std::string_view value);

// An error at an element: `where` becomes "line 12: <pci ...>".
Error at_line(std::size_t line, const std::string& tag, std::string message, std::string hint = "");

}  // namespace sidestep::topology::nccl_xml
