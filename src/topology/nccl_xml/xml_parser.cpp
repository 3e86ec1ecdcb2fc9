#include "topology/nccl_xml/xml_parser.hpp"

#include <expat.h>
#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include <sidestep/units.hpp>

#include "topology/nccl_xml/xml_text.hpp"

// libexpat.a of Debian 12 takes the salt of its hash tables from this function, which glibc has since 2.36
// only. With one of our own, programs built there run on older systems as well. Hidden: it is for expat
// alone.
extern "C" __attribute__((visibility("hidden"))) void arc4random_buf(void* bytes, std::size_t size) noexcept {
    auto* at = static_cast<unsigned char*>(bytes);
    while (size > 0) {
        const ssize_t got = ::getrandom(at, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        at += got;
        size -= static_cast<std::size_t>(got);
    }
    // Where a sandbox forbids the call, the clock and where the kernel put the stack have to do, as in expat.
    auto weak = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) ^
                reinterpret_cast<std::uintptr_t>(&bytes);
    for (; size > 0; --size, ++at) {
        weak = weak * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX
        *at = static_cast<unsigned char>(weak >> 56);
    }
}

namespace sidestep::topology::nccl_xml {

namespace {

static_assert(largest_text <= INT_MAX, "expat counts in int");

struct FreeParser {
    void operator()(XML_Parser parser) const { XML_ParserFree(parser); }
};
using Parser = std::unique_ptr<std::remove_pointer_t<XML_Parser>, FreeParser>;

// What the callbacks share. Nothing may throw through expat, which is C.
struct Reading {
    XML_Parser parser = nullptr;
    XmlVisitor* visitor = nullptr;
    std::size_t elements = 0;
    int depth = 0;
    std::optional<Error> error = std::nullopt;
    bool out_of_memory = false;

    std::size_t line() const { return XML_GetCurrentLineNumber(parser); }

    void stop(Error with) {
        if (!error) error = std::move(with);
        XML_StopParser(parser, XML_FALSE);
    }

    // Runs what may fail or run out of memory.
    template <typename Call>
    void guarded(Call call) {
        if (error || out_of_memory) return;
        try {
            if (auto result = call(); !result.ok()) stop(result.error());
        } catch (const std::bad_alloc&) {
            out_of_memory = true;
            XML_StopParser(parser, XML_FALSE);
        }
    }
};

constexpr std::size_t shown = 48;  // bytes of a name or value in messages

// At most `limit` bytes of a text, cut between characters.
std::string_view cut(std::string_view text, std::size_t limit) {
    if (text.size() <= limit) return text;
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0) == 0x80) --limit;
    return text.substr(0, limit);
}

Error too_much(std::size_t line, std::string message) {
    return at_line(line, "", std::move(message), "no machine's topology needs that");
}

Result<void> check_limits(const Reading& reading, const XmlElement& element) {
    if (reading.elements > max_elements)
        return too_much(element.line, fmt::format("the file has more than {} elements", max_elements));
    if (reading.depth > deepest)
        return too_much(element.line, fmt::format("the elements nest more than {} levels deep", deepest));
    std::size_t count = 0;
    for (const char* const* at = element.attributes; *at != nullptr; at += 2) {
        if (++count > max_attributes) {
            return too_much(element.line,
                            fmt::format("an element has more than {} attributes", max_attributes));
        }
        if (fits(at[0]) && fits(at[1])) continue;
        return at_line(
            element.line, tag_text(element.name, "", ""),
            fmt::format("the attribute {} is longer than {} bytes", cut(at[0], shown), longest_value),
            "NCCL does not read such a file either");
    }
    return {};
}

void on_open(void* user, const XML_Char* name, const XML_Char** attributes) {
    auto& reading = *static_cast<Reading*>(user);
    reading.guarded([&]() -> Result<void> {
        ++reading.elements;
        ++reading.depth;
        const XmlElement element{name, attributes, reading.line()};
        if (auto fine = check_limits(reading, element); !fine.ok()) return fine;
        return reading.visitor->open(element);
    });
}

void on_close(void* user, const XML_Char*) {
    auto& reading = *static_cast<Reading*>(user);
    --reading.depth;
    reading.guarded([&] { return reading.visitor->close(); });
}

void on_doctype(void* user, const XML_Char*, const XML_Char*, const XML_Char*, int) {
    auto& reading = *static_cast<Reading*>(user);
    reading.guarded([&]() -> Result<void> {
        return at_line(reading.line(), "<!DOCTYPE>",
                       "the file has a document type, which could hold anything",
                       "topology files have none: remove it");
    });
}

Error failure(const Reading& reading) {
    const XML_Error code = XML_GetErrorCode(reading.parser);
    if (reading.out_of_memory || code == XML_ERROR_NO_MEMORY)
        return Error{ErrorCode::out_of_memory, "there is no memory to read the topology", "", ""};
    if (reading.error) return *reading.error;
    return at_line(reading.line(), "", fmt::format("the file is no XML: {}", XML_ErrorString(code)),
                   "NCCL_TOPO_DUMP_FILE makes NCCL write a good one");
}

}  // namespace

std::optional<std::string_view> XmlElement::attribute(std::string_view wanted) const {
    for (const char* const* at = attributes; *at != nullptr; at += 2) {
        if (wanted == at[0]) return at[1];
    }
    return std::nullopt;
}

std::string tag_text(std::string_view name, std::string_view key, std::string_view value) {
    if (key.empty()) return fmt::format("<{}>", cut(name, shown));
    std::string plain(cut(value, shown));
    for (char& c : plain) {
        if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
    }
    return fmt::format("<{} {}=\"{}{}\">", cut(name, shown), key, plain,
                       plain.size() < value.size() ? "..." : "");
}

Error at_line(std::size_t line, const std::string& tag, std::string message, std::string hint) {
    return Error{ErrorCode::invalid_argument, std::move(message),
                 fmt::format("line {}{}{}", line, tag.empty() ? "" : ": ", tag), std::move(hint)};
}

Result<void> parse_xml(std::string_view text, XmlVisitor& visitor) {
    if (text.size() > largest_text) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the file holds {}, more than {}", format_bytes(text.size()),
                                 format_bytes(largest_text)),
                     "", "no machine's topology needs that"};
    }
    const Parser parser(XML_ParserCreate(nullptr));
    if (!parser) return Error{ErrorCode::out_of_memory, "there is no memory to read the topology", "", ""};
    Reading reading{parser.get(), &visitor};
    XML_SetUserData(parser.get(), &reading);
    XML_SetElementHandler(parser.get(), on_open, on_close);
    XML_SetStartDoctypeDeclHandler(parser.get(), on_doctype);
    // In one piece: fed in several, expat starts a tag that is not finished over with each.
    const XML_Status status = XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), XML_TRUE);
    if (status != XML_STATUS_OK || reading.error || reading.out_of_memory) return failure(reading);
    return {};
}

}  // namespace sidestep::topology::nccl_xml
