// TLS 1.3 between two that have the same key (a pre-shared key with a fresh Diffie-Hellman exchange: RFC 8446, 2.2 and
// 4.2.9), by OpenSSL, which is loaded while the program runs. Bytes in, bytes out: sockets belong to the caller.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <sidestep/result.hpp>

namespace sidestep::driver {

class TlsSession;

class Tls {
public:
    // ErrorCode::unsupported, with what to install, where there is no libssl.so.3.
    static Result<std::shared_ptr<const Tls>> load();
    ~Tls();

    // OpenSSL's own words: "OpenSSL 3.0.17 1 Jul 2025".
    std::string version() const;

    enum class Role { client, server };
    // A key has 32 bytes. The session needs this object no longer.
    Result<TlsSession> session(Role role, std::string_view key) const;

    // HMAC-SHA-256 (RFC 2104), 32 bytes. A failure is no text that a caller could compare: two of them would be alike.
    Result<std::string> mac(std::string_view key, std::string_view text) const;
    // Whether two are alike, in a time that does not tell where they differ.
    static bool equal(std::string_view a, std::string_view b);
    // From OpenSSL's generator. ErrorCode::device_error where it has no seed.
    Result<std::string> random(std::size_t bytes) const;

private:
    struct State;
    explicit Tls(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
};

// One connection's end. One thread at a time. A client begins by itself: take_out() has its first words.
class TlsSession {
public:
    TlsSession(TlsSession&&) noexcept;
    TlsSession& operator=(TlsSession&&) noexcept;
    ~TlsSession();

    // What came from the other end. permission_denied where it has another key, io_error where it speaks no TLS 1.3,
    // or what it says has been tampered with; the session is of no more use then, but take_out() has what tells
    // the other end.
    Result<void> take_in(std::string_view wire);
    // What is to be sent to the other end.
    std::string take_out();
    // Both ends have shown that they have the key.
    bool established() const;
    // Encrypts; before the session is established too: it is kept until then.
    Result<void> write(std::string_view plain);
    // What has come, decrypted; empty where nothing has.
    std::string read();
    // Says that no more comes, after all that was written; write() is refused from then on. A connection that ends
    // without it was cut off.
    void finish();
    // The other end said that no more comes. What comes nevertheless is left unread.
    bool ended() const;

private:
    friend class Tls;
    struct State;
    explicit TlsSession(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace sidestep::driver
