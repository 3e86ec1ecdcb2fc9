// What two machines say over their control connection. Each message is a word, the number of the question it belongs to,
// or 0 where nobody waits for an answer, and fields; a message without any byte says only that its sender lives.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/storage_bytes.hpp>
#include "backend/backend.hpp"

namespace sidestep::wire {

constexpr std::uint16_t protocol_version = 2;
// What a machine of that version says, this one understands.
constexpr std::uint16_t oldest_protocol = 2;
constexpr std::size_t longest_message = std::size_t{64} << 10;
constexpr std::size_t message_head = 9;  // of its word and number
constexpr std::size_t longest_path = 4096;
constexpr std::size_t longest_name = 256;
constexpr std::size_t token_bytes = 32;

enum class Word : std::uint8_t {
    hello = 1,  // the first of both ends; the answer to the client's has the session's number and key
    answer,     // to a question: its fields, or an error
    describe,
    allocate,
    free,
    attach,
    commit,
    report,  // on a region's storage, answered by a Report
    detach,
    leave,  // from either end, without an answer: it ends on purpose, and does not come again
    // Between two nodes, by tokens (wire/lent.hpp).
    lend,  // a region, or 0; is answered a token
    take,  // what was lent under a token, as a region of whoever asks; answered as attach
    reach,  // has the node take what a third machine lent; answered as attach, `way` being what carries it there
    trial,   // memory for bytes that try the link out; answered as attach
    tell,    // of the machine: see wire/telling.hpp
    list,    // the names in a folder
    notify,  // whoever serves; a text
};
constexpr Word last_word = Word::notify;

struct Envelope {
    Word word = Word::hello;
    std::uint64_t number = 0;
    std::string body;
};
std::string to_message(const Envelope& envelope);
// io_error for what is no message, here and below; every field is checked.
Result<Envelope> parse_envelope(std::string_view message);

struct Hello {
    std::uint16_t oldest = oldest_protocol;  // protocols that the sender speaks
    std::uint16_t newest = protocol_version;
    std::string software;  // "sidestep 0.1.0"
    std::string node;      // what the sender's machine calls itself
    // Of the server. A data socket shows that it knows the key: see wire/data_hello.hpp. A client that was connected before
    // says both again, and goes on where it was.
    std::uint64_t session = 0;
    std::string key;
    std::uint8_t sockets = 1;  // that are worth while
    bool checked = false;      // of a client: bytes carry checksums, both ways (wire/checked_link.hpp)
    bool encrypted = false;    // of a client: they are to be encrypted; of a node: they are
    std::vector<std::string> engines{"tcp"};  // the sender's, the best first; of a node, all it has
};
std::string to_body(const Hello& hello);
Result<Hello> parse_hello(std::string_view body);

// What there is to say of a failure.
std::string to_body(const Error& error);
std::string to_answer(const Result<std::string>& answer);
// The fields of an answer, or the error it tells of, `peer` being named in it.
Result<std::string> parse_answer(std::string_view body, const std::string& peer);

// The buffer's place is one of the machine that is asked.
std::string to_body(const Buffer& buffer);
Result<Buffer> parse_buffer(std::string_view body);

std::string to_body(const backend::Description& description);
Result<backend::Description> parse_description(std::string_view body);

struct AllocateRequest {
    Place place;
    Bytes bytes = 0;
    MemoryKind kind = MemoryKind::automatic;
};
std::string to_body(const AllocateRequest& request);
Result<AllocateRequest> parse_allocate(std::string_view body);
struct Allocated {
    Place place;
    std::uint64_t address = 0;
    MemoryKind kind = MemoryKind::automatic;
};
std::string to_body(const Allocated& allocated);
Result<Allocated> parse_allocated(std::string_view body);

struct AttachRequest {
    Buffer buffer;
    backend::AttachOptions options;
};
std::string to_body(const AttachRequest& request);
Result<AttachRequest> parse_attach(std::string_view body);
struct Attached {
    std::uint64_t region = 0;
    std::string
        way;  // how bytes go between link and region, for people: "by pinned memory and its cuda copy engine"; empty: straight
};
std::string to_body(const Attached& attached);
Result<Attached> parse_attached(std::string_view body);

// Of a region, or an address: commit, report, detach, free.
std::string to_body(std::uint64_t number);
Result<std::uint64_t> parse_number(std::string_view body);

std::string to_body(const std::string& token);
Result<std::string> parse_token(std::string_view body);

// Of a folder, in the order of their bytes.
struct ListRequest {
    std::string folder;
    std::string after;  // the last one that is known; empty: none
};
std::string to_body(const ListRequest& request);
Result<ListRequest> parse_list(std::string_view body);
struct Names {
    std::vector<std::string> names;
    bool all = true;  // there are no more behind them
};
// `all` names, as many as one message holds.
std::string to_body(const Names& all);
Result<Names> parse_names(std::string_view body);
// Asks for all names of a folder, one answer after the other. A node that lies may have more of them without end.
constexpr int most_lists = 1024;
Result<std::vector<std::string>> ask_for_names(
    const std::string& folder, const std::function<Result<std::string>(const std::string& body)>& ask);

// A notification, of at most longest_notification bytes.
std::string to_text_body(std::string_view text);
Result<std::string> parse_text(std::string_view body);

struct ReachRequest {
    std::string addresses;  // of the third machine, as parse_addresses()
    std::string token;
    Bytes size = 0;  // of the region
};
std::string to_body(const ReachRequest& request);
Result<ReachRequest> parse_reach(std::string_view body);

struct Report {
    std::vector<std::string> notes;
    StorageBytes storage;
};
std::string to_body(const Report& report);
Result<Report> parse_report(std::string_view body);

}  // namespace sidestep::wire
