// How both ends of a data socket show that they belong to a session, before the first frame. The client says which session
// it means; each end then proves that it has the session's key, which went over the control connection, by a code over
// what the other has just drawn (HMAC-SHA-256), so that nothing that was recorded helps. What follows goes as it is, or is encrypted
// under keys that both make of the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <sidestep/result.hpp>
#include "backend/network.hpp"
#include "driver/tcp_socket.hpp"
#include "driver/tls.hpp"

namespace sidestep::wire {

constexpr std::size_t nonce_bytes = 32;
constexpr std::size_t code_bytes = 32;
// What a data socket is for.
enum class DataKind : std::uint8_t {
    link = 1,   // frames of the session
    probe = 2,  // plain bytes that go nowhere: see wire/probes.hpp
    encrypted_link = 3,
};
// From the client: eight letters by which a data socket is told from a control connection, the session's number, the
// kind, a nonce. The codes stand for all of it.
constexpr std::string_view data_magic = "SIDESTEP";
constexpr std::size_t data_hello_bytes = 8 + 8 + 1 + nonce_bytes;

std::string data_hello(std::uint64_t session, std::string_view nonce, DataKind kind = DataKind::link);
struct DataHello {
    std::uint64_t session = 0;
    std::string nonce;
    DataKind kind = DataKind::link;
};
// io_error for other bytes, a kind that there is not among them.
Result<DataHello> parse_data_hello(std::string_view bytes);

// What the server answers: its own nonce and its code; and the client's code for that.
Result<std::string> server_code(const driver::Tls& tls, std::string_view key, const DataHello& hello,
                                std::string_view nonce);
Result<std::string> client_code(const driver::Tls& tls, std::string_view key, const DataHello& hello,
                                std::string_view nonce);

// Of an encrypted link, as this end has them; none for other kinds.
Result<backend::SocketKeys> data_keys(const driver::Tls& tls, std::string_view key, const DataHello& hello,
                                      std::string_view nonce, driver::Tls::Role end);

// The client's part, on a socket that has just been connected: the keys. permission_denied where the other end does not have
// the session's key.
Result<backend::SocketKeys> enter_session(const driver::Tls& tls, const driver::TcpSocket& socket,
                                          std::uint64_t session, std::string_view key,
                                          driver::TcpSocket::Time until, DataKind kind = DataKind::link);

}  // namespace sidestep::wire
