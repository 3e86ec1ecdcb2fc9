// XML as NCCL's own parser takes it: one blank between attributes, no declaration, no tabs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sidestep::topology::nccl_xml {

// NCCL's parser gives up at longer values, each as it is written: "&amp;" has five bytes.
constexpr std::size_t longest_value = 253;
bool fits(std::string_view value);

class XmlText {
public:
    void open(std::string_view name);
    // Of the element that was opened last. Values that do not fit are left out.
    void attribute(std::string_view name, std::string_view value);
    void attribute(std::string_view name, long value);
    void close();

    std::size_t elements() const { return elements_; }
    std::string& text() { return text_; }

private:
    void finish_tag();

    struct Open {
        std::string name;
        bool has_children;
    };
    std::string text_;
    std::vector<Open> open_;
    bool in_tag_ = false;
    std::size_t elements_ = 0;
};

}  // namespace sidestep::topology::nccl_xml
