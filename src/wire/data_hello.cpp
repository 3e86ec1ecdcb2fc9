#include "wire/data_hello.hpp"

#include <utility>

#include "base/message.hpp"
#include "base/try.hpp"
#include "driver/tls_socket.hpp"

namespace sidestep::wire {
namespace {

Result<std::string> code(const driver::Tls& tls, std::string_view key, std::string_view who,
                         const DataHello& hello, std::string_view nonce) {
    base::MessageWriter said;
    said.put_text(who).put(hello.session).put(static_cast<std::uint8_t>(hello.kind));
    said.put_text(hello.nonce).put_text(nonce);
    return tls.mac(key, said.take());
}

}  // namespace

std::string data_hello(std::uint64_t session, std::string_view nonce, DataKind kind) {
    base::MessageWriter said;
    said.put(session).put(static_cast<std::uint8_t>(kind));
    return std::string(data_magic) + said.take() + std::string(nonce);
}

Result<DataHello> parse_data_hello(std::string_view bytes) {
    if (bytes.size() != data_hello_bytes || !bytes.starts_with(data_magic))
        return Error{ErrorCode::io_error, "the other end is no node of sidestep", "data socket", {}};
    base::MessageReader reader(bytes.substr(data_magic.size()));
    DataHello hello;
    hello.session = reader.number<std::uint64_t>();
    const auto kind = reader.number<std::uint8_t>();
    if (kind < static_cast<std::uint8_t>(DataKind::link) ||
        kind > static_cast<std::uint8_t>(DataKind::encrypted_link))
        return Error{ErrorCode::io_error, "a data socket is for something that this version does not know",
                     "data socket", "use one version of sidestep on both machines"};
    hello.kind = static_cast<DataKind>(kind);
    hello.nonce = bytes.substr(bytes.size() - nonce_bytes);
    return hello;
}

Result<std::string> server_code(const driver::Tls& tls, std::string_view key, const DataHello& hello,
                                std::string_view nonce) {
    return code(tls, key, "server", hello, nonce);
}

Result<std::string> client_code(const driver::Tls& tls, std::string_view key, const DataHello& hello,
                                std::string_view nonce) {
    return code(tls, key, "client", hello, nonce);
}

Result<backend::SocketKeys> data_keys(const driver::Tls& tls, std::string_view key, const DataHello& hello,
                                      std::string_view nonce, driver::Tls::Role end) {
    backend::SocketKeys keys;
    if (hello.kind != DataKind::encrypted_link) return keys;
    SIDESTEP_TRY(keys.out, code(tls, key, "what the client sends", hello, nonce));
    SIDESTEP_TRY(keys.in, code(tls, key, "what the server sends", hello, nonce));
    keys.out.resize(driver::tls_secret_bytes);
    keys.in.resize(driver::tls_secret_bytes);
    if (end == driver::Tls::Role::server) std::swap(keys.out, keys.in);
    return keys;
}

Result<backend::SocketKeys> enter_session(const driver::Tls& tls, const driver::TcpSocket& socket,
                                          std::uint64_t session, std::string_view key,
                                          driver::TcpSocket::Time until, DataKind kind) {
    SIDESTEP_TRY(std::string nonce, tls.random(nonce_bytes));
    const DataHello hello{session, std::move(nonce), kind};
    const std::string said = data_hello(session, hello.nonce, kind);
    SIDESTEP_CHECK(socket.send_all(said.data(), said.size(), until));
    std::string answer(nonce_bytes + code_bytes, '\0');
    SIDESTEP_CHECK(socket.receive_all(answer.data(), answer.size(), until));
    const std::string_view theirs = std::string_view(answer).substr(0, nonce_bytes);
    SIDESTEP_TRY(const std::string expected, server_code(tls, key, hello, theirs));
    if (!driver::Tls::equal(expected, std::string_view(answer).substr(nonce_bytes)))
        return Error{ErrorCode::permission_denied,
                     "the other end of a data socket does not have the session's key", "data socket",
                     "see who listens at that address"};
    SIDESTEP_TRY(const std::string ours, client_code(tls, key, hello, theirs));
    SIDESTEP_CHECK(socket.send_all(ours.data(), ours.size(), until));
    return data_keys(tls, key, hello, theirs, driver::Tls::Role::client);
}

}  // namespace sidestep::wire
