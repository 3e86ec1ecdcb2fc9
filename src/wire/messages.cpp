#include "wire/messages.hpp"

#include <bit>

#include <fmt/format.h>

#include <sidestep/network.hpp>
#include "base/message.hpp"
#include "base/try.hpp"

namespace sidestep::wire {

// The fields lie in the order of the bytes of every machine that this runs on.
static_assert(std::endian::native == std::endian::little);

using base::MessageReader;
using base::MessageWriter;

namespace {

constexpr std::size_t longest_words = 4000;  // 16 notes fit into a message
constexpr std::size_t most_notes = 16;
constexpr std::uint32_t magic = 0x50455453;  // "STEP"

constexpr std::size_t longest_names = longest_message / 2;
constexpr int most_engines = 8;
constexpr unsigned checked_flag = 1;  // of a greeting, as the next
constexpr unsigned encrypted_flag = 2;
constexpr std::size_t longest_engine = 16;

Error no_message(const char* what) {
    return Error{ErrorCode::io_error, fmt::format("the other machine sent something that is no {}", what),
                 "control", "use one version of sidestep on both machines"};
}

Result<std::string> take_path(MessageReader& reader) {
    std::string path = reader.text(longest_message);
    if (path.size() <= longest_path) return path;
    return Error{ErrorCode::invalid_argument,
                 fmt::format("a path of {} bytes is too long", path.size()),
                 {},
                 fmt::format("at most {} bytes are taken", longest_path)};
}

void put(MessageWriter& writer, const Place& place) {
    writer.put(static_cast<std::uint8_t>(place.kind()))
        .put(static_cast<std::int32_t>(place.index()))
        .put_text(place.path());
}

// Through the text that people write, whose reader checks every part.
Result<Place> take_place(MessageReader& reader) {
    const auto kind = reader.number<std::uint8_t>();
    const auto index = reader.number<std::int32_t>();
    SIDESTEP_TRY(const std::string path, take_path(reader));
    switch (static_cast<PlaceKind>(kind)) {
        case PlaceKind::host:
            return index < 0 ? Place::host() : Place::host(index);
        case PlaceKind::gpu:
            return Place::parse(fmt::format("gpu:{}", index));
        case PlaceKind::file:
            if (path.empty() || path.find('\0') != std::string::npos) return no_message("path");
            return Place::file(path);
        case PlaceKind::shared:
            return Place::parse("shared:" + path);
        case PlaceKind::p2pmem:
            return Place::parse("p2pmem:" + path);
    }
    return no_message("place");
}

Result<MemoryKind> take_kind(MessageReader& reader) {
    const auto kind = reader.number<std::uint8_t>();
    if (kind > static_cast<std::uint8_t>(MemoryKind::p2pmem)) return no_message("kind of memory");
    return static_cast<MemoryKind>(kind);
}

void put(MessageWriter& writer, const Buffer& buffer) {
    put(writer, buffer.place());
    writer.put(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(buffer.address())))
        .put(std::uint64_t{buffer.offset()})
        .put(std::uint64_t{buffer.size()});
}

Result<Buffer> take_buffer(MessageReader& reader) {
    SIDESTEP_TRY(Place place, take_place(reader));
    const auto address = reader.number<std::uint64_t>();
    const auto offset = reader.number<std::uint64_t>();
    const auto size = reader.number<std::uint64_t>();
    if (size != Buffer::whole && offset > Buffer::whole - size) return no_message("range");
    if (place.is_file()) return Buffer::file(place.path(), offset, size);
    if (place.is_shared()) return Buffer::shared(place.path(), offset, size);
    return Buffer::memory(std::move(place), reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)),
                          size);
}

template <typename Value>
Result<Value> exact(const MessageReader& reader, Value value, const char* what) {
    if (!reader.exact()) return no_message(what);
    return value;
}

}  // namespace

std::string to_message(const Envelope& envelope) {
    MessageWriter writer;
    writer.put(static_cast<std::uint8_t>(envelope.word)).put(envelope.number);
    return writer.take() + envelope.body;
}

Result<Envelope> parse_envelope(std::string_view message) {
    if (message.size() < message_head || message.size() > longest_message) return no_message("message");
    MessageReader reader(message.substr(0, message_head));
    const auto word = reader.number<std::uint8_t>();
    const auto number = reader.number<std::uint64_t>();
    if (word < 1 || word > static_cast<std::uint8_t>(last_word)) return no_message("message");
    return Envelope{static_cast<Word>(word), number, std::string(message.substr(message_head))};
}

// What comes first tells versions apart, and stays the same in all of them.
std::string to_body(const Hello& hello) {
    MessageWriter writer;
    writer.put(magic).put(hello.oldest).put(hello.newest).put_text(hello.software).put_text(hello.node);
    writer.put(hello.session).put_text(hello.key).put(hello.sockets);
    writer.put(static_cast<std::uint8_t>((hello.checked ? checked_flag : 0) |
                                         (hello.encrypted ? encrypted_flag : 0)));
    writer.put(static_cast<std::uint8_t>(hello.engines.size()));
    for (const std::string& engine : hello.engines) writer.put_text(engine);
    return writer.take();
}

Result<Hello> parse_hello(std::string_view body) {
    MessageReader reader(body);
    if (reader.number<std::uint32_t>() != magic) return no_message("greeting");
    Hello hello;
    hello.oldest = reader.number<std::uint16_t>();
    hello.newest = reader.number<std::uint16_t>();
    hello.software = reader.text(longest_name);
    hello.node = reader.text(longest_name);
    if (hello.oldest > protocol_version || hello.newest < oldest_protocol || hello.newest < hello.oldest)
        return Error{
            ErrorCode::unsupported,
            fmt::format(
                "the other machine runs {}, which speaks protocols {} to {}; this one speaks {} to {}",
                hello.software.empty() ? "another version" : hello.software, hello.oldest, hello.newest,
                oldest_protocol, protocol_version),
            "control", "install one version of sidestep on both machines"};
    hello.session = reader.number<std::uint64_t>();
    hello.key = reader.text(64);
    hello.sockets = reader.number<std::uint8_t>();
    const auto flags = reader.number<std::uint8_t>();
    hello.checked = (flags & checked_flag) != 0;
    hello.encrypted = (flags & encrypted_flag) != 0;
    const auto engines = reader.number<std::uint8_t>();
    hello.engines.clear();
    for (int i = 0; i < engines && i < most_engines; ++i)
        hello.engines.push_back(reader.text(longest_engine));
    if (engines > most_engines || flags > (checked_flag | encrypted_flag)) return no_message("greeting");
    return exact(reader, std::move(hello), "greeting");
}

std::string to_body(const Error& error) {
    MessageWriter writer;
    writer.put(static_cast<std::uint8_t>(error.code));
    for (const std::string* part : {&error.message, &error.where, &error.hint})
        writer.put_text(std::string_view(*part).substr(0, longest_words));
    return writer.take();
}

std::string to_answer(const Result<std::string>& answer) {
    return answer ? std::string(1, '\1') + *answer : std::string(1, '\0') + to_body(answer.error());
}

Result<std::string> parse_answer(std::string_view body, const std::string& peer) {
    if (body.empty()) return no_message("answer");
    if (body.front() == '\1') return std::string(body.substr(1));
    MessageReader reader(body.substr(1));
    const auto code = reader.number<std::uint8_t>();
    Error error;
    error.message = fmt::format("{} says: {}", peer, reader.text(longest_words));
    error.where = reader.text(longest_words);
    error.hint = reader.text(longest_words);
    if (!reader.exact() || code < 1 || code > static_cast<int>(ErrorCode::internal))
        return no_message("answer");
    error.code = static_cast<ErrorCode>(code);
    return error;
}

std::string to_body(const Buffer& buffer) {
    MessageWriter writer;
    put(writer, buffer);
    return writer.take();
}

Result<Buffer> parse_buffer(std::string_view body) {
    MessageReader reader(body);
    SIDESTEP_TRY(Buffer buffer, take_buffer(reader));
    return exact(reader, std::move(buffer), "buffer");
}

std::string to_body(const backend::Description& description) {
    MessageWriter writer;
    put(writer, description.place);
    writer.put(static_cast<std::uint8_t>(description.memory)).put(std::uint64_t{description.size});
    return writer.put(description.identity).put(description.version).take();
}

Result<backend::Description> parse_description(std::string_view body) {
    MessageReader reader(body);
    backend::Description description;
    SIDESTEP_TRY(description.place, take_place(reader));
    SIDESTEP_TRY(description.memory, take_kind(reader));
    description.size = reader.number<std::uint64_t>();
    description.identity = reader.number<std::uint64_t>();
    description.version = reader.number<std::uint64_t>();
    return exact(reader, std::move(description), "description");
}

std::string to_body(const AllocateRequest& request) {
    MessageWriter writer;
    put(writer, request.place);
    return writer.put(std::uint64_t{request.bytes}).put(static_cast<std::uint8_t>(request.kind)).take();
}

Result<AllocateRequest> parse_allocate(std::string_view body) {
    MessageReader reader(body);
    AllocateRequest request;
    SIDESTEP_TRY(request.place, take_place(reader));
    request.bytes = reader.number<std::uint64_t>();
    SIDESTEP_TRY(request.kind, take_kind(reader));
    return exact(reader, std::move(request), "request for memory");
}

std::string to_body(const Allocated& allocated) {
    MessageWriter writer;
    put(writer, allocated.place);
    return writer.put(allocated.address).put(static_cast<std::uint8_t>(allocated.kind)).take();
}

Result<Allocated> parse_allocated(std::string_view body) {
    MessageReader reader(body);
    Allocated allocated;
    SIDESTEP_TRY(allocated.place, take_place(reader));
    allocated.address = reader.number<std::uint64_t>();
    SIDESTEP_TRY(allocated.kind, take_kind(reader));
    return exact(reader, std::move(allocated), "answer about memory");
}

std::string to_body(const AttachRequest& request) {
    const backend::AttachOptions& options = request.options;
    MessageWriter writer;
    put(writer, request.buffer);
    writer.put(static_cast<std::uint8_t>(options.access)).put(static_cast<std::uint8_t>(options.page_cache));
    writer.put(static_cast<std::uint8_t>(options.sync_file)).put(static_cast<std::uint8_t>(options.strict));
    return writer.put(std::uint64_t{options.expected_size}).put(options.identity).put(options.version).take();
}

Result<AttachRequest> parse_attach(std::string_view body) {
    MessageReader reader(body);
    AttachRequest request;
    SIDESTEP_TRY(request.buffer, take_buffer(reader));
    const auto access = reader.number<std::uint8_t>();
    const auto page_cache = reader.number<std::uint8_t>();
    const auto sync = reader.number<std::uint8_t>();
    const auto strict = reader.number<std::uint8_t>();
    if (access > 1 || page_cache > static_cast<std::uint8_t>(PageCache::bypass) || sync > 1 || strict > 1)
        return no_message("request to attach");
    request.options.access = static_cast<backend::Access>(access);
    request.options.page_cache = static_cast<PageCache>(page_cache);
    request.options.sync_file = sync == 1;
    request.options.strict = strict == 1;
    request.options.expected_size = reader.number<std::uint64_t>();
    request.options.identity = reader.number<std::uint64_t>();
    request.options.version = reader.number<std::uint64_t>();
    return exact(reader, std::move(request), "request to attach");
}

std::string to_body(const Attached& attached) {
    return MessageWriter().put(attached.region).put_text(attached.way).take();
}

Result<Attached> parse_attached(std::string_view body) {
    MessageReader reader(body);
    Attached attached;
    attached.region = reader.number<std::uint64_t>();
    attached.way = reader.text(longest_words);
    return exact(reader, std::move(attached), "answer about a region");
}

std::string to_body(std::uint64_t number) {
    return MessageWriter().put(number).take();
}

Result<std::uint64_t> parse_number(std::string_view body) {
    MessageReader reader(body);
    const auto number = reader.number<std::uint64_t>();
    return exact(reader, number, "number");
}

std::string to_body(const std::string& token) {
    return MessageWriter().put_text(token).take();
}

Result<std::string> parse_token(std::string_view body) {
    MessageReader reader(body);
    std::string token = reader.text(token_bytes);
    return exact(reader, std::move(token), "token");
}

std::string to_body(const ListRequest& request) {
    return MessageWriter().put_text(request.folder).put_text(request.after).take();
}

Result<ListRequest> parse_list(std::string_view body) {
    MessageReader reader(body);
    ListRequest request;
    SIDESTEP_TRY(request.folder, take_path(reader));
    SIDESTEP_TRY(request.after, take_path(reader));
    return exact(reader, std::move(request), "request for names");
}

std::string to_body(const Names& all) {
    MessageWriter writer;
    std::size_t size = 5, count = 0;  // what stands before the names
    while (count < all.names.size() && (size += 4 + all.names[count].size()) < longest_names) ++count;
    writer.put(static_cast<std::uint8_t>(all.all && count == all.names.size()));
    writer.put(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) writer.put_text(all.names[i]);
    return writer.take();
}

Result<Names> parse_names(std::string_view body) {
    MessageReader reader(body);
    Names names;
    const auto all = reader.number<std::uint8_t>();
    const auto count = reader.number<std::uint32_t>();
    if (body.size() >= longest_names || count > longest_names || all > 1) return no_message("list of names");
    names.all = all == 1;
    for (std::uint32_t i = 0; i < count; ++i) names.names.push_back(reader.text(longest_path));
    return exact(reader, std::move(names), "list of names");
}

Result<std::vector<std::string>> ask_for_names(
    const std::string& folder, const std::function<Result<std::string>(const std::string& body)>& ask) {
    std::vector<std::string> all;
    ListRequest request{folder, {}};
    for (int asked = 0; asked < most_lists; ++asked) {
        SIDESTEP_TRY(const std::string answer, ask(to_body(request)));
        SIDESTEP_TRY(Names names, parse_names(answer));
        all.insert(all.end(), names.names.begin(), names.names.end());
        if (names.all || names.names.empty()) return all;
        request.after = std::move(names.names.back());
    }
    return Error{ErrorCode::unsupported,
                 fmt::format("the node has more names than {} answers hold", most_lists),
                 folder,
                 {}};
}

std::string to_text_body(std::string_view text) {
    return MessageWriter().put_text(text).take();
}

Result<std::string> parse_text(std::string_view body) {
    MessageReader reader(body);
    std::string text = reader.text(longest_notification);
    return exact(reader, std::move(text), "notification");
}

std::string to_body(const ReachRequest& request) {
    return MessageWriter()
        .put_text(request.addresses)
        .put_text(request.token)
        .put(std::uint64_t{request.size})
        .take();
}

Result<ReachRequest> parse_reach(std::string_view body) {
    MessageReader reader(body);
    ReachRequest request;
    request.addresses = reader.text(longest_words);
    request.token = reader.text(token_bytes);
    request.size = reader.number<std::uint64_t>();
    return exact(reader, std::move(request), "request to reach a node");
}

std::string to_body(const Report& report) {
    MessageWriter writer;
    const std::size_t count = std::min(report.notes.size(), most_notes);
    writer.put(static_cast<std::uint8_t>(count));
    for (std::size_t i = 0; i < count; ++i)
        writer.put_text(std::string_view(report.notes[i]).substr(0, longest_words));
    const StorageBytes& storage = report.storage;
    for (const Bytes bytes : {storage.gpu_direct, storage.o_direct, storage.page_cache})
        writer.put(std::uint64_t{bytes});
    return writer.take();
}

Result<Report> parse_report(std::string_view body) {
    MessageReader reader(body);
    Report report;
    const auto count = reader.number<std::uint8_t>();
    if (count > most_notes) return no_message("list of notes");
    for (int i = 0; i < count; ++i) report.notes.push_back(reader.text(longest_words));
    StorageBytes& storage = report.storage;
    for (Bytes* bytes : {&storage.gpu_direct, &storage.o_direct, &storage.page_cache})
        *bytes = reader.number<std::uint64_t>();
    return exact(reader, std::move(report), "list of notes");
}

}  // namespace sidestep::wire
