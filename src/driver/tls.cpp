#include "driver/tls.hpp"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <climits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/dynamic_library.hpp"

namespace sidestep::driver {
namespace {

constexpr std::size_t psk_bytes = 32;
constexpr std::size_t mac_bytes = 32;
// A session is for any holder of the key: all have one name, which reveals nothing.
constexpr std::string_view identity = "sidestep";
// One suite, since the key belongs to its hash.
constexpr const char* suite_name = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> suite_id{0x13, 0x01};
// What goes to OpenSSL at a time, which bounds what it keeps.
constexpr std::size_t wire_piece = 64 << 10;
constexpr std::size_t largest_record = SSL3_RT_MAX_PLAIN_LENGTH;
// Records under one traffic key, far below the 2^24.5 that RFC 8446, 5.5 allows.
constexpr std::uint64_t records_a_key = 1 << 18;

// The functions that are used, under their own names, as the headers declare them. Nothing is linked.
// clang-format off
#define SIDESTEP_TLS_SSL(X) \
    X(OPENSSL_init_ssl) X(TLS_method) X(SSL_CTX_new) X(SSL_CTX_free) X(SSL_CTX_ctrl) \
    X(SSL_CTX_set_options) X(SSL_CTX_clear_options) X(SSL_CTX_set_ciphersuites) X(SSL_CTX_set_num_tickets) \
    X(SSL_CTX_set_max_early_data) X(SSL_CTX_set_psk_use_session_callback) \
    X(SSL_CTX_set_psk_find_session_callback) X(SSL_new) X(SSL_free) X(SSL_set_bio) X(SSL_set_ex_data) \
    X(SSL_get_ex_data) X(SSL_set_verify) X(SSL_set_connect_state) X(SSL_set_accept_state) \
    X(SSL_do_handshake) X(SSL_session_reused) X(SSL_get_error) X(SSL_read_ex) X(SSL_write_ex) \
    X(SSL_key_update) X(SSL_shutdown) X(SSL_CIPHER_find) X(SSL_SESSION_new) X(SSL_SESSION_free) X(SSL_SESSION_up_ref) \
    X(SSL_SESSION_set1_master_key) X(SSL_SESSION_set_cipher) X(SSL_SESSION_set_protocol_version)
#define SIDESTEP_TLS_CRYPTO(X) \
    X(BIO_new) X(BIO_free) X(BIO_s_mem) X(BIO_ctrl_pending) X(BIO_read_ex) X(BIO_write_ex) \
    X(ERR_clear_error) X(ERR_peek_error) X(ERR_reason_error_string) X(EVP_sha256) X(HMAC) X(RAND_bytes) \
    X(OpenSSL_version)
// clang-format on

struct Api {
#define SIDESTEP_TLS_MEMBER(name) decltype(::name)* name = nullptr;
    SIDESTEP_TLS_SSL(SIDESTEP_TLS_MEMBER)
    SIDESTEP_TLS_CRYPTO(SIDESTEP_TLS_MEMBER)
#undef SIDESTEP_TLS_MEMBER
};

Result<void> bind_functions(const DynamicLibrary& ssl, const DynamicLibrary& crypto, Api& api) {
#define SIDESTEP_TLS_BIND(name) SIDESTEP_CHECK(ssl.bind(api.name, #name));
    SIDESTEP_TLS_SSL(SIDESTEP_TLS_BIND)
#undef SIDESTEP_TLS_BIND
#define SIDESTEP_TLS_BIND(name) SIDESTEP_CHECK(crypto.bind(api.name, #name));
    SIDESTEP_TLS_CRYPTO(SIDESTEP_TLS_BIND)
#undef SIDESTEP_TLS_BIND
    return {};
}

Result<Api> load_functions() {
    SIDESTEP_TRY(const DynamicLibrary crypto, DynamicLibrary::open("libcrypto.so.3"));
    SIDESTEP_TRY(const DynamicLibrary ssl, DynamicLibrary::open("libssl.so.3"));
    Api api;
    SIDESTEP_CHECK(bind_functions(ssl, crypto, api));
    // Threads may still run while the process exits: nothing is torn down under them.
    if (api.OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1)
        return Error{ErrorCode::unsupported, "OpenSSL does not start", "OPENSSL_init_ssl", {}};
    return api;
}

// One table for the process, for callbacks too, which are given nothing that leads to one. Never destroyed: see above.
const Result<Api>& loaded() {
    static const auto* const api = new Result<Api>(load_functions());
    return *api;
}

// Other users of OpenSSL on the same thread neither see errors of these calls nor leave theirs to them.
class Errors {
public:
    explicit Errors(const Api& api) : api_(api) { api_.ERR_clear_error(); }
    ~Errors() { api_.ERR_clear_error(); }
    Errors(const Errors&) = delete;
    Errors& operator=(const Errors&) = delete;

    // What the first that went wrong belongs to: 0 where it is not of TLS.
    int reason() const {
        const unsigned long code = api_.ERR_peek_error();
        return ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
    }
    std::string words() const {
        const char* words = api_.ERR_reason_error_string(api_.ERR_peek_error());
        return words != nullptr ? words : "no reason given";
    }

private:
    const Api& api_;
};

using Context = std::unique_ptr<SSL_CTX, decltype(::SSL_CTX_free)*>;
using Ssl = std::unique_ptr<SSL, decltype(::SSL_free)*>;
using Bio = std::unique_ptr<BIO, decltype(::BIO_free)*>;
using Psk = std::unique_ptr<SSL_SESSION, decltype(::SSL_SESSION_free)*>;

Error openssl_failed(const Errors& errors, const char* call) {
    return Error{ErrorCode::unsupported, fmt::format("OpenSSL cannot do TLS 1.3: {}", errors.words()), call,
                 "its configuration (openssl.cnf) may forbid it"};
}

// Another for the other end, since OpenSSL keeps a reference of its own to what a callback gives it. Null where the
// session has its key no longer.
SSL_SESSION* shared_psk(const Api& api, const SSL* ssl) {
    auto* psk = static_cast<Psk*>(api.SSL_get_ex_data(ssl, 0))->get();
    return psk != nullptr && api.SSL_SESSION_up_ref(psk) == 1 ? psk : nullptr;
}

// A client's turn to name its key. 0 ends the handshake.
int use_psk(SSL* ssl, const EVP_MD*, const unsigned char** name, std::size_t* size, SSL_SESSION** session) {
    *session = shared_psk(*loaded(), ssl);
    *name = reinterpret_cast<const unsigned char*>(identity.data());
    *size = identity.size();
    return *session != nullptr ? 1 : 0;
}

// A server's turn to find what a client named. No session, and it goes on without a key, which fails for lack of any
// other proof.
int find_psk(SSL* ssl, const unsigned char* name, std::size_t size, SSL_SESSION** session) {
    *session = nullptr;
    if (std::string_view(reinterpret_cast<const char*>(name), size) != identity) return 1;
    *session = shared_psk(*loaded(), ssl);
    return *session != nullptr ? 1 : 0;
}

// Overrules whatever the machine's openssl.cnf sets.
Result<Context> make_context(const Api& api) {
    const Errors errors(api);
    Context context(api.SSL_CTX_new(api.TLS_method()), api.SSL_CTX_free);
    if (context == nullptr) return openssl_failed(errors, "SSL_CTX_new");
    SSL_CTX* raw = context.get();
    if (api.SSL_CTX_ctrl(raw, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr) != 1 ||
        api.SSL_CTX_ctrl(raw, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, nullptr) != 1 ||
        api.SSL_CTX_set_ciphersuites(raw, suite_name) != 1 || api.SSL_CTX_set_num_tickets(raw, 0) != 1 ||
        api.SSL_CTX_set_max_early_data(raw, 0) != 1)
        return openssl_failed(errors, "SSL_CTX");
    // Sessions are not resumed, so that each has its own Diffie-Hellman exchange.
    api.SSL_CTX_ctrl(raw, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
    api.SSL_CTX_set_options(raw, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    api.SSL_CTX_clear_options(raw, SSL_OP_ALLOW_NO_DHE_KEX);
    api.SSL_CTX_set_psk_use_session_callback(raw, use_psk);
    api.SSL_CTX_set_psk_find_session_callback(raw, find_psk);
    return context;
}

Psk make_psk(const Api& api, SSL* ssl, std::string_view key) {
    Psk psk(api.SSL_SESSION_new(), api.SSL_SESSION_free);
    const SSL_CIPHER* suite = api.SSL_CIPHER_find(ssl, suite_id.data());
    const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
    if (psk == nullptr || suite == nullptr ||
        api.SSL_SESSION_set1_master_key(psk.get(), bytes, key.size()) != 1 ||
        api.SSL_SESSION_set_cipher(psk.get(), suite) != 1 ||
        api.SSL_SESSION_set_protocol_version(psk.get(), TLS1_3_VERSION) != 1)
        psk.reset();
    return psk;
}

Error other_key(std::string_view how) {
    return Error{ErrorCode::permission_denied, "the other end has another key", std::string(how),
                 "both ends need the same key"};
}

// A handshake failed for what came. A server sees whether a key fits; a client is told, without a word of the key, in
// alerts that mean nothing else where both are this program.
Error handshake_error(Tls::Role role, const Errors& errors) {
    const int reason = errors.reason();
    const bool server = role == Tls::Role::server;
    switch (reason) {
        case SSL_R_BINDER_DOES_NOT_VERIFY:
            return other_key(errors.words());
        // Without a certificate a server has no other way to go on where no key was named, or an unknown one.
        case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
        case SSL_R_NO_SHARED_CIPHER:
            if (server) return other_key(errors.words());
            break;
        case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
        case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
        case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
        case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
        case SSL_R_TLSV1_ALERT_UNKNOWN_PSK_IDENTITY:
        case SSL_R_CERTIFICATE_VERIFY_FAILED:
            if (!server) return other_key(errors.words());
            break;
        default:
            break;
    }
    return Error{ErrorCode::io_error, "the other end speaks no TLS 1.3, or what it says was tampered with",
                 errors.words(), "check the address, and that the other program is of the same version"};
}

Error broken(const Errors& errors) {
    return Error{ErrorCode::io_error, "what the other end says was tampered with", errors.words(), {}};
}

}  // namespace

struct Tls::State {
    const Api& api;
    Context context;
};

struct TlsSession::State {
    State(const Api& functions, Tls::Role end, SSL_CTX* context)
        : api(functions), role(end), ssl(functions.SSL_new(context), functions.SSL_free) {}

    const Api& api;
    const Tls::Role role;
    Psk psk{nullptr, nullptr};  // wiped by OpenSSL as it goes: once it is not needed
    Ssl ssl;
    BIO* in = nullptr;  // what came; both belong to ssl
    BIO* out = nullptr;
    std::string waiting;  // to be sent once established
    std::string plain;    // what came, decrypted
    std::uint64_t records = 0;
    bool established = false;
    bool finishing = false;
    bool ended = false;
    std::optional<Error> failed;

    Result<void> start(std::string_view key);
    Result<void> advance();
    Result<void> shake_hands();
    Result<void> decrypt();
    Result<void> encrypt(std::string_view text);
    Result<void> fail(Error error);
};

Result<void> TlsSession::State::start(std::string_view key) {
    const Errors errors(api);
    if (ssl == nullptr) return openssl_failed(errors, "SSL_new");
    Bio input(api.BIO_new(api.BIO_s_mem()), api.BIO_free);
    Bio output(api.BIO_new(api.BIO_s_mem()), api.BIO_free);
    if (input == nullptr || output == nullptr) return openssl_failed(errors, "BIO_new");
    in = input.release();
    out = output.release();
    api.SSL_set_bio(ssl.get(), in, out);
    psk = make_psk(api, ssl.get(), key);
    if (psk == nullptr || api.SSL_set_ex_data(ssl.get(), 0, &psk) != 1)
        return openssl_failed(errors, "SSL_SESSION");
    if (role == Tls::Role::server) {
        api.SSL_set_accept_state(ssl.get());
        return {};
    }
    // No authority is trusted, so no certificate stands in for the key.
    api.SSL_set_verify(ssl.get(), SSL_VERIFY_PEER, nullptr);
    api.SSL_set_connect_state(ssl.get());
    return shake_hands();
}

Result<void> TlsSession::State::fail(Error error) {
    failed = std::move(error);
    psk.reset();
    waiting.clear();
    return *failed;
}

Result<void> TlsSession::State::shake_hands() {
    {
        const Errors errors(api);
        const int done = api.SSL_do_handshake(ssl.get());
        if (done != 1) {
            if (api.SSL_get_error(ssl.get(), done) == SSL_ERROR_WANT_READ) return {};
            return fail(handshake_error(role, errors));
        }
        // It came about by a certificate, or by nothing.
        if (api.SSL_session_reused(ssl.get()) != 1) {
            api.SSL_shutdown(ssl.get());
            return fail(other_key("TLS"));
        }
    }
    established = true;
    psk.reset();
    SIDESTEP_CHECK(encrypt(std::exchange(waiting, {})));
    if (finishing) api.SSL_shutdown(ssl.get());
    return {};
}

Result<void> TlsSession::State::decrypt() {
    const Errors errors(api);
    std::array<char, largest_record> record;
    for (;;) {
        std::size_t size = 0;
        const int done = api.SSL_read_ex(ssl.get(), record.data(), record.size(), &size);
        if (done == 1) {
            plain.append(record.data(), size);
            continue;
        }
        const int why = api.SSL_get_error(ssl.get(), done);
        if (why == SSL_ERROR_ZERO_RETURN) ended = true;
        if (why == SSL_ERROR_ZERO_RETURN || why == SSL_ERROR_WANT_READ) return {};
        return fail(broken(errors));
    }
}

Result<void> TlsSession::State::advance() {
    if (!established) SIDESTEP_CHECK(shake_hands());
    return established ? decrypt() : Result<void>();
}

Result<void> TlsSession::State::encrypt(std::string_view text) {
    if (text.empty()) return {};
    const Errors errors(api);
    // One traffic key is not for ever, and OpenSSL does not count.
    records += (text.size() + largest_record - 1) / largest_record;
    if (records > records_a_key) {
        records = 0;
        if (api.SSL_key_update(ssl.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
            return fail(openssl_failed(errors, "SSL_key_update"));
    }
    std::size_t size = 0;
    // What it writes to has no end: all goes at once.
    if (api.SSL_write_ex(ssl.get(), text.data(), text.size(), &size) == 1 && size == text.size()) return {};
    return fail(Error{ErrorCode::out_of_memory,
                      fmt::format("OpenSSL cannot encrypt: {}", errors.words()),
                      "SSL_write",
                      {}});
}

TlsSession::TlsSession(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsSession::TlsSession(TlsSession&&) noexcept = default;
TlsSession& TlsSession::operator=(TlsSession&&) noexcept = default;
TlsSession::~TlsSession() = default;

Result<void> TlsSession::take_in(std::string_view wire) {
    State& state = *state_;
    while (!wire.empty()) {
        if (state.failed) return *state.failed;
        if (state.ended) return {};
        const std::string_view piece = wire.substr(0, wire_piece);
        wire.remove_prefix(piece.size());
        std::size_t taken = 0;
        const Errors errors(state.api);
        if (state.api.BIO_write_ex(state.in, piece.data(), piece.size(), &taken) != 1 ||
            taken != piece.size())
            return state.fail(
                Error{ErrorCode::out_of_memory, "OpenSSL cannot keep what came", "BIO_write", {}});
        SIDESTEP_CHECK(state.advance());
    }
    return {};
}

std::string TlsSession::take_out() {
    const Errors errors(state_->api);
    std::string wire(state_->api.BIO_ctrl_pending(state_->out), '\0');
    std::size_t taken = 0;
    if (!wire.empty()) state_->api.BIO_read_ex(state_->out, wire.data(), wire.size(), &taken);
    wire.resize(taken);
    return wire;
}

bool TlsSession::established() const {
    return state_->established && !state_->failed;
}

Result<void> TlsSession::write(std::string_view plain) {
    if (state_->failed) return *state_->failed;
    if (state_->finishing) return Error{ErrorCode::invalid_argument, "words after the last", "TLS", {}};
    if (state_->established) return state_->encrypt(plain);
    state_->waiting.append(plain);
    return {};
}

std::string TlsSession::read() {
    return std::exchange(state_->plain, {});
}

void TlsSession::finish() {
    if (std::exchange(state_->finishing, true) || !established()) return;
    const Errors errors(state_->api);
    state_->api.SSL_shutdown(state_->ssl.get());
}

bool TlsSession::ended() const {
    return state_->ended;
}

Result<std::shared_ptr<const Tls>> Tls::load() {
    if (!loaded())
        return Error{ErrorCode::unsupported, "no OpenSSL 3: " + loaded().error().message, "libssl.so.3",
                     "install it (Debian, Ubuntu: libssl3; Fedora, RHEL: openssl-libs)"};
    SIDESTEP_TRY(Context context, make_context(*loaded()));
    auto state = std::make_shared<State>(State{*loaded(), std::move(context)});
    return std::shared_ptr<const Tls>(new Tls(std::move(state)));
}

Tls::~Tls() = default;

std::string Tls::version() const {
    return state_->api.OpenSSL_version(OPENSSL_VERSION);
}

Result<TlsSession> Tls::session(Role role, std::string_view key) const {
    if (key.size() != psk_bytes)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("a key has {} bytes, this one {}", psk_bytes, key.size()),
                     "TLS",
                     {}};
    auto session = std::make_unique<TlsSession::State>(state_->api, role, state_->context.get());
    SIDESTEP_CHECK(session->start(key));
    return TlsSession(std::move(session));
}

Result<std::string> Tls::mac(std::string_view key, std::string_view text) const {
    const Errors errors(state_->api);
    // OpenSSL takes null for a missing argument, not for an empty one.
    const char* key_data = key.empty() ? "" : key.data();
    const char* text_data = text.empty() ? "" : text.data();
    std::string code(mac_bytes, '\0');
    unsigned int size = 0;
    if (key.size() <= INT_MAX &&
        state_->api.HMAC(state_->api.EVP_sha256(), key_data, static_cast<int>(key.size()),
                         reinterpret_cast<const unsigned char*>(text_data), text.size(),
                         reinterpret_cast<unsigned char*>(code.data()), &size) != nullptr &&
        size == mac_bytes)
        return code;
    return Error{
        ErrorCode::unsupported, fmt::format("OpenSSL cannot do HMAC: {}", errors.words()), "HMAC", {}};
}

bool Tls::equal(std::string_view a, std::string_view b) {
    if (a.size() != b.size()) return false;
    // Volatile, so that no compiler leaves the loop early.
    volatile unsigned char differences = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        differences = static_cast<unsigned char>(differences | (a[i] ^ b[i]));
    return differences == 0;
}

Result<std::string> Tls::random(std::size_t bytes) const {
    const Errors errors(state_->api);
    std::string found(bytes, '\0');
    for (std::size_t done = 0; done < bytes;) {
        const std::size_t piece = std::min(bytes - done, wire_piece);
        auto* to = reinterpret_cast<unsigned char*>(found.data() + done);
        if (state_->api.RAND_bytes(to, static_cast<int>(piece)) != 1)
            return Error{ErrorCode::device_error,
                         fmt::format("OpenSSL has no random numbers: {}", errors.words()),
                         "RAND_bytes",
                         {}};
        done += piece;
    }
    return found;
}

}  // namespace sidestep::driver
