#include "topology/nccl_xml/values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

#include "topology/link_rates.hpp"

namespace sidestep::topology::nccl_xml {

namespace {

// "8" to "8.0 GT/s PCIe" of generation 1 to 6, as Linux has written them since 5.7.
constexpr std::array<std::string_view, 6> speeds = {"2.5 GT/s PCIe",  "5.0 GT/s PCIe",  "8.0 GT/s PCIe",
                                                    "16.0 GT/s PCIe", "32.0 GT/s PCIe", "64.0 GT/s PCIe"};

std::string_view without_blanks(std::string_view text) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    return text;
}

// The hexadecimal number of `shortest` to `longest` digits before `end` ('\0': the end of the text), which
// is cut off.
std::optional<std::uint64_t> digits(std::string_view& text, char end, std::size_t shortest,
                                    std::size_t longest) {
    const std::size_t length = end == '\0' ? text.size() : text.find(end);
    if (length == std::string_view::npos || length < shortest || length > longest) return std::nullopt;
    std::uint64_t number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + length, number, 16);
    if (error != std::errc() || stop != text.data() + length) return std::nullopt;
    text.remove_prefix(end == '\0' ? length : length + 1);
    return number;
}

}  // namespace

std::optional<long> whole_number(std::string_view text) {
    text = without_blanks(text);
    const bool negative = !text.empty() && text.front() == '-';
    if (negative || (!text.empty() && text.front() == '+')) text.remove_prefix(1);
    const bool hexadecimal = text.substr(0, 2) == "0x" || text.substr(0, 2) == "0X";
    if (hexadecimal) text.remove_prefix(2);
    // A second sign is none.
    if (text.empty() || text.front() == '-') return std::nullopt;
    long number = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number, hexadecimal ? 16 : 10);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return negative ? -number : number;
}

std::optional<std::string> bus_id(std::string_view text) {
    std::string_view rest = without_blanks(text);
    const auto domain = digits(rest, ':', 4, 8);
    if (!domain) return std::nullopt;
    const auto bus = digits(rest, ':', 2, 2);
    if (!bus) return std::nullopt;
    const auto device = digits(rest, '.', 2, 2);
    if (!device) return std::nullopt;
    const auto function = digits(rest, '\0', 1, 1);
    if (!function) return std::nullopt;
    return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", *domain, *bus, *device, *function);
}

bool is_hidden(std::string_view target) {
    // NVML's figure for "no bus id" is all ones, which programs have printed in several widths: the domain is
    // what they have in common.
    const std::string_view domain = target.substr(0, target.find(':'));
    return domain.size() > 4 &&
           std::all_of(domain.begin(), domain.end(), [](char c) { return c == 'f' || c == 'F'; });
}

std::optional<int> generation_of(std::string_view link_speed) {
    const std::string_view text = without_blanks(link_speed);
    double gigatransfers = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gigatransfers);
    if (error != std::errc()) return std::nullopt;
    std::string_view unit = without_blanks(text.substr(static_cast<std::size_t>(end - text.data())));
    if (unit.substr(0, 4) != "GT/s") return std::nullopt;
    return pcie_generation(gigatransfers);
}

std::string_view link_speed(int generation) {
    return generation >= 1 && generation <= static_cast<int>(speeds.size())
               ? speeds[static_cast<std::size_t>(generation - 1)]
               : std::string_view();
}

bool is_class(std::string_view pci_class, std::string_view prefix) {
    return pci_class.substr(0, prefix.size()) == prefix;
}

}  // namespace sidestep::topology::nccl_xml
