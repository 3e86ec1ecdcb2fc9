// What another machine says, and the names of machines. The first byte chooses the reader.
#include <array>

#include "backend/network.hpp"
#include "driver/tls_socket.hpp"
#include "tests/fuzz/fuzz_target.hpp"
#include "wire/address.hpp"
#include "wire/data_hello.hpp"
#include "wire/etcd.hpp"
#include "wire/http_request.hpp"
#include "wire/messages.hpp"
#include "wire/telling.hpp"

namespace sidestep::fuzz {
namespace {

using namespace wire;

// What was read can be written, and reads again as the same.
template <typename Parse>
void check_body(std::string_view body, Parse parse) {
    const auto once = parse(body);
    if (!once.ok()) {
        require(!once.error().message.empty(), "a refusal has words");
        return;
    }
    const std::string written = to_body(*once);
    const auto again = parse(std::string_view(written));
    require(again.ok(), "what is written reads", again.ok() ? "" : again.error().to_string());
    require(to_body(*again) == written, "writing it again changes nothing");
    require(!parse(std::string_view(written + '\0')).ok(), "nothing follows a message");
}

void check_answer(std::string_view body) {
    const auto answer = parse_answer(body, "node7");
    if (answer.ok()) return require(to_answer(answer) == body, "an answer is what it says");
    require(!answer.error().message.empty(), "a failure has words");
    require(parse_answer(to_answer(answer), "node7").error().code == answer.error().code,
            "a code comes back");
}

void check_question(std::string_view bytes) {
    const auto envelope = parse_envelope(bytes);
    if (!envelope.ok()) return require(!envelope.error().message.empty(), "a refusal has words");
    require(to_message(*envelope) == bytes, "a message is what it says");
    const std::string_view body = envelope->body;
    switch (envelope->word) {
        case Word::hello:
            return check_body(body, parse_hello);
        case Word::answer:
            return check_answer(body);
        case Word::describe:
            return check_body(body, parse_buffer);
        case Word::allocate:
            return check_body(body, parse_allocate);
        case Word::attach:
            return check_body(body, parse_attach);
        case Word::free:
        case Word::commit:
        case Word::report:
        case Word::detach:
        case Word::lend:
            return check_body(body, parse_number);
        case Word::take:
            return check_body(body, parse_token);
        case Word::reach:
            return check_body(body, parse_reach);
        case Word::tell:
            return check_body(body, parse_tell);
        case Word::list:
            return check_body(body, parse_list);
        case Word::notify:
            if (const auto text = parse_text(body); text.ok())
                require(to_text_body(*text) == body, "a notification is what it says");
            return;
        case Word::leave:
        case Word::trial:
            return;  // whatever follows it
    }
    require(false, "a word that there is not");
}

void check_frame(std::string_view bytes) {
    if (bytes.size() < backend::frame_bytes) return;
    const auto* first = reinterpret_cast<const unsigned char*>(bytes.data());
    const auto frame = backend::parse_frame(first);
    if (!frame.ok()) return require(frame.error().code == ErrorCode::io_error, "a refusal is of the line");
    const auto written = backend::to_bytes(*frame);
    require(std::equal(written.begin(), written.end(), first), "a frame is what it says");
    require(!frame->has_payload() || frame->size <= backend::max_push, "what follows has a bound");
    require(frame->offset + frame->size >= frame->offset, "a range has an end");
}

void check_places(std::string_view bytes) {
    const auto places = backend::parse_places(bytes);
    if (!places.ok()) return require(places.error().code == ErrorCode::io_error, "a refusal is of the line");
    require(backend::to_bytes(*places) == bytes, "a list of places is what it says");
    require(places->size() <= backend::most_places, "a list has a bound");
}

void check_data_hello(std::string_view bytes) {
    const auto hello = parse_data_hello(bytes);
    if (!hello.ok()) return;
    require(hello->nonce.size() == nonce_bytes, "a nonce has its size");
    require(data_hello(hello->session, hello->nonce, hello->kind) == bytes, "a greeting is what it says");
}

void check_record_head(std::string_view bytes) {
    if (bytes.size() < driver::tls_record_head) return;
    const auto size = driver::parse_record_head(reinterpret_cast<const unsigned char*>(bytes.data()));
    if (!size.ok()) return require(size.error().code == ErrorCode::io_error, "a refusal is of the line");
    require(*size > 16 && *size <= (16 << 10) + 256, "a record has a tag and a bound");
}

void check_host_port(std::string_view text) {
    const auto at = parse_host_port(text);
    if (!at.ok()) return require(at.error().code == ErrorCode::invalid_argument, "a refusal is of the text");
    require(!at->host.empty(), "a host has a name");
    const auto again = parse_host_port(at->to_string());
    require(again.ok() && *again == *at, "what is written reads", at->to_string());
}

// More of a request never takes back what its head has said.
void check_request(std::string_view bytes) {
    const auto asked = parse_request(bytes);
    if (!asked) return;
    require(parse_request(std::string(bytes) + "\r\n\r\nmore") == asked, "a head is read once");
    const std::string answer = http_answer(*asked, "page");
    require(answer.ends_with("\r\n\r\npage") == (*asked == Asked::page), "the page is for who asks for it");
}

void check_nodes(std::string_view text) {
    const auto nodes = parse_nodes(text);
    if (!nodes.ok()) return require(!nodes.error().message.empty(), "a refusal has words");
    std::string written;
    for (const NodeAddress& node : *nodes)
        for (const HostPort& at : node.at)
            written += (written.empty() ? "" : ",") + node.name + "=" + at.to_string();
    const auto again = parse_nodes(written);
    require(again.ok() && *again == *nodes, "what is written reads", written);
}

void check_etcd(std::string_view text) {
    const auto place = parse_etcd(text);
    if (!place.ok())
        return require(place.error().code == ErrorCode::invalid_argument, "a refusal is of the text");
    require(!place->members.empty() && place->prefix.starts_with('/'), "it has members and keys");
    std::string written;
    for (const HostPort& at : place->members) written += (written.empty() ? "etcd://" : ",") + at.to_string();
    const auto again = parse_etcd(written + place->prefix);
    require(again.ok() && *again == *place, "what is written reads", written);
}

void check_etcd_answer(std::string_view body) {
    const auto value = parse_range_answer(body);
    if (!value.ok()) return require(value.error().code == ErrorCode::io_error, "a refusal is of the line");
    if (*value) static_cast<void>(parse_addresses(**value));
}

}  // namespace
}  // namespace sidestep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace sidestep;
    std::string_view bytes(reinterpret_cast<const char*>(data), size);
    if (bytes.empty()) return 0;
    const char reader = bytes.front();
    bytes.remove_prefix(1);
    switch (reader) {
        case 'q':
            fuzz::check_question(bytes);
            break;
        case 'd':
            fuzz::check_body(bytes, wire::parse_description);
            break;
        case 'm':
            fuzz::check_body(bytes, wire::parse_allocated);
            break;
        case 'a':
            fuzz::check_body(bytes, wire::parse_attached);
            break;
        case 'r':
            fuzz::check_body(bytes, wire::parse_report);
            break;
        case 'e':
            fuzz::check_body(bytes, wire::parse_names);
            break;
        case 'f':
            fuzz::check_frame(bytes);
            break;
        case 'l':
            fuzz::check_places(bytes);
            break;
        case 's':
            fuzz::check_data_hello(bytes);
            break;
        case 't':
            fuzz::check_record_head(bytes);
            break;
        case 'h':
            fuzz::check_host_port(bytes);
            break;
        case 'p':
            fuzz::check_request(bytes);
            break;
        case 'c':
            fuzz::check_etcd(bytes);
            break;
        case 'v':
            fuzz::check_etcd_answer(bytes);
            break;
        case 'n':
            fuzz::check_nodes(bytes);
            break;
        default:
            break;
    }
    return 0;
}
