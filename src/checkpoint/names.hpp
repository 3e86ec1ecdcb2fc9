// Names of tensors: as words of an error, in JSON, and found among many. And those of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sidestep::checkpoint {

// Where text stops being UTF-8 (RFC 3629: no surrogates, no long forms); nothing where all of it is.
std::optional<std::size_t> first_bad_utf8(std::string_view text);

// Text in quotation marks for an error or a table's cell: without control characters, and cut after `max`
// bytes.
std::string shown(std::string_view text, std::size_t max = 100);

// Text as a JSON string with its quotation marks, as serde_json and Python's json with ensure_ascii=False
// write it. Bytes that are no UTF-8 become U+FFFD.
std::string json_text(std::string_view text);

// What follows the last "/" of a path.
std::string base_name(std::string_view path);

// Names that are looked up. Sorted by hash: quick for any names, those that were made to collide too.
class NameTable {
public:
    // name(i) is the name of number i, as long as the table lives.
    using NameOf = std::function<std::string_view(std::size_t)>;
    NameTable() = default;
    NameTable(std::size_t count, const NameOf& name);

    std::optional<std::size_t> find(std::string_view wanted, const NameOf& name) const;
    // Two numbers with one name, those of the lowest numbers; nothing where all names differ.
    std::optional<std::pair<std::size_t, std::size_t>> twice(const NameOf& name) const;

private:
    struct Entry {
        std::uint64_t hash = 0;
        std::uint32_t number = 0;
    };
    std::vector<Entry> entries_;
};

}  // namespace sidestep::checkpoint
