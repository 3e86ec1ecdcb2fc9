// A socket whose bytes are records of TLS 1.3 (RFC 8446, 5.2; AES-128-GCM) under keys that both ends have agreed on before: there
// is no handshake, no padding, and no new key. By the kernel (kTLS) where it can, else by OpenSSL; the two ends need not be alike.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <sidestep/result.hpp>
#include "driver/tcp_socket.hpp"

namespace sidestep::driver {

// Of one direction: 16 bytes of key, then 12 from which each record's nonce is made.
constexpr std::size_t tls_secret_bytes = 16 + 12;
constexpr std::size_t tls_record_head = 5;

// Bytes that follow the head of a record; io_error for what is no record of application data, or one that is too long.
Result<std::size_t> parse_record_head(const unsigned char* head);

// One thread sends at a time, and one receives.
class TlsSocket {
public:
    // Bytes go as they are.
    explicit TlsSocket(TcpSocket socket);
    // `keeps_out`: OpenSSL does what the kernel could. unsupported where there is no OpenSSL 3 either.
    enum class Kernel { where_it_can, keeps_out };
    static Result<TlsSocket> encrypted(TcpSocket socket, std::string_view out, std::string_view in,
                                       Kernel kernel = Kernel::where_it_can);
    TlsSocket(TlsSocket&&) noexcept;
    ~TlsSocket();

    const TcpSocket& socket() const { return socket_; }
    // "encrypted by the kernel"; empty: bytes go as they are.
    std::string_view words() const;

    // As TcpSocket::send(). Where it answers less than all, the next call is to begin with the bytes that are left: some of
    // them may be encrypted already. ErrorCode::cancelled where the key has been used for as many bytes as is safe.
    Result<Bytes> send(std::span<const TcpSocket::Part> parts);
    // As TcpSocket::receive(). What has been tampered with is io_error, and may have been written to the rooms. Where it fills
    // the rooms, more may be here that nobody is woken for: see holds().
    Result<std::optional<Bytes>> receive(std::span<const TcpSocket::Room> rooms);
    bool holds() const;

private:
    class Sealer;
    class Opener;
    TcpSocket socket_;
    bool encrypted_ = false;
    std::uint64_t records_ = 0;       // that the kernel has sent
    std::unique_ptr<Sealer> sealer_;  // null: the kernel does it, or nobody
    std::unique_ptr<Opener> opener_;
};

}  // namespace sidestep::driver
