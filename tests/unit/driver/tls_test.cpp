// Two ends in one process, and others that are no such end.
#include "driver/tls.hpp"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <functional>

#include "driver/dynamic_library.hpp"

namespace sidestep::driver {
namespace {

const std::string key(32, 'k');
const std::string other_key(32, 'o');

const Tls& tls() {
    static const auto loaded = Tls::load().value();
    return *loaded;
}

TlsSession client(const std::string& with = key) {
    return tls().session(Tls::Role::client, with).value();
}

TlsSession server(const std::string& with = key) {
    return tls().session(Tls::Role::server, with).value();
}

// Carries all that both have to say until neither has anything. What went wrong first at either end stays.
struct Talk {
    Result<void> client;
    Result<void> server;
};

Talk talk(TlsSession& client, TlsSession& server) {
    Talk result;
    for (;;) {
        const std::string asked = client.take_out();
        if (!asked.empty() && result.server.ok()) result.server = server.take_in(asked);
        const std::string answered = server.take_out();
        if (!answered.empty() && result.client.ok()) result.client = client.take_in(answered);
        if (asked.empty() && answered.empty()) return result;
    }
}

void expect_talk(TlsSession& client, TlsSession& server) {
    const Talk result = talk(client, server);
    ASSERT_TRUE(result.client.ok()) << result.client.error().to_string();
    ASSERT_TRUE(result.server.ok()) << result.server.error().to_string();
    ASSERT_TRUE(client.established());
    ASSERT_TRUE(server.established());
}

std::string numbers(std::size_t size) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
    return text;
}

std::string bytes_of(std::string_view hex) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
    return bytes;
}

TEST(Tls, SaysWhichItIs) {
    EXPECT_EQ(tls().version().rfind("OpenSSL 3", 0), 0u) << tls().version();
}

TEST(Tls, TakesKeysOf32Bytes) {
    for (const std::size_t size : {0u, 16u, 31u, 33u}) {
        const auto refused = tls().session(Tls::Role::client, std::string(size, 'k'));
        ASSERT_FALSE(refused.ok()) << size;
        EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    }
}

TEST(Tls, MacsAreThoseOfRfc4231) {
    EXPECT_EQ(tls().mac(std::string(20, '\x0b'), "Hi There").value(),
              bytes_of("b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"));
    EXPECT_EQ(tls().mac("Jefe", "what do ya want for nothing?").value(),
              bytes_of("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));
    EXPECT_EQ(tls().mac({}, {}).value(),
              bytes_of("b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad"));
}

TEST(Tls, ComparesAllBytes) {
    EXPECT_TRUE(Tls::equal("", ""));
    EXPECT_TRUE(Tls::equal("abc", "abc"));
    EXPECT_FALSE(Tls::equal("abc", "abd"));
    EXPECT_FALSE(Tls::equal("abc", "Abc"));
    EXPECT_FALSE(Tls::equal("abc", "ab"));
    EXPECT_FALSE(Tls::equal("", "a"));
    EXPECT_FALSE(Tls::equal(std::string("\x80", 1), std::string("\0", 1)));
    EXPECT_FALSE(Tls::equal("abab", "acac")) << "two differences are not none";
}

TEST(Tls, RandomNumbersDiffer) {
    const std::string one = tls().random(32).value();
    EXPECT_EQ(one.size(), 32u);
    EXPECT_NE(one, tls().random(32).value());
    const std::string many = tls().random(200'000).value();
    EXPECT_EQ(many.size(), 200'000u);
    // Up to the last: eight zeros at the end come once in 2^64.
    EXPECT_NE(many.substr(many.size() - 8), std::string(8, '\0'));
    EXPECT_EQ(tls().random(0).value(), "");
}

TEST(TlsSession, TalksBothWays) {
    TlsSession a = client();
    TlsSession b = server();
    EXPECT_FALSE(a.established());
    EXPECT_FALSE(b.established());
    expect_talk(a, b);
    EXPECT_EQ(b.read(), "");
    ASSERT_TRUE(a.write("who is there?").ok());
    ASSERT_TRUE(b.write("who asks?").ok());
    expect_talk(a, b);
    EXPECT_EQ(b.read(), "who is there?");
    EXPECT_EQ(b.read(), "") << "once";
    EXPECT_EQ(a.read(), "who asks?");
    EXPECT_FALSE(a.ended());
    EXPECT_FALSE(b.ended());
}

TEST(TlsSession, OutlivesWhatMadeIt) {
    auto loaded = Tls::load().value();
    TlsSession a = loaded->session(Tls::Role::client, key).value();
    TlsSession b = loaded->session(Tls::Role::server, key).value();
    loaded.reset();
    TlsSession moved = std::move(a);
    expect_talk(moved, b);
}

TEST(TlsSession, KeepsWhatIsWrittenEarly) {
    TlsSession a = client();
    TlsSession b = server();
    ASSERT_TRUE(a.write("early ").ok());
    ASSERT_TRUE(b.write("earlier").ok());
    ASSERT_TRUE(a.write("bird").ok());
    // None of it goes out before the other end has shown that it has the key.
    const std::string first = a.take_out();
    EXPECT_EQ(first.find("early"), std::string::npos);
    ASSERT_TRUE(b.take_in(first).ok());
    ASSERT_TRUE(a.take_in(b.take_out()).ok());
    EXPECT_TRUE(a.established());
    EXPECT_EQ(a.read(), "") << "the server has not seen yet that the client has the key";
    EXPECT_FALSE(b.established());
    expect_talk(a, b);
    EXPECT_EQ(b.read(), "early bird");
    EXPECT_EQ(a.read(), "earlier");
}

TEST(TlsSession, CarriesMuch) {
    TlsSession a = client();
    TlsSession b = server();
    const std::string much = numbers(1 << 20);
    ASSERT_TRUE(a.write(much).ok());
    expect_talk(a, b);
    EXPECT_TRUE(b.read() == much);
    ASSERT_TRUE(b.write(much).ok());
    ASSERT_TRUE(b.write("").ok());
    ASSERT_TRUE(b.write("and more").ok());
    const std::string wire = b.take_out();
    EXPECT_EQ(b.take_out(), "");
    EXPECT_EQ(wire.find(much.substr(1000, 16)), std::string::npos);
    ASSERT_TRUE(a.take_in(wire).ok());
    EXPECT_TRUE(a.read() == much + "and more");
}

// However a network cuts it.
TEST(TlsSession, TakesByteAfterByte) {
    TlsSession a = client();
    TlsSession b = server();
    ASSERT_TRUE(a.write("hello").ok());
    for (int turns = 0; turns < 10; ++turns) {
        for (const char byte : a.take_out()) ASSERT_TRUE(b.take_in({&byte, 1}).ok());
        for (const char byte : b.take_out()) ASSERT_TRUE(a.take_in({&byte, 1}).ok());
    }
    EXPECT_TRUE(a.established() && b.established());
    EXPECT_EQ(b.read(), "hello");
}

TEST(TlsSession, TellsTheLastWord) {
    TlsSession a = client();
    TlsSession b = server();
    // Before the handshake is done, too: after all that was written.
    ASSERT_TRUE(a.write("last words").ok());
    a.finish();
    a.finish();
    const auto refused = a.write("one more");
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
    expect_talk(a, b);
    EXPECT_EQ(b.read(), "last words");
    EXPECT_TRUE(b.ended());
    EXPECT_FALSE(a.ended());
    // The other way is open.
    ASSERT_TRUE(b.write("an answer").ok());
    b.finish();
    expect_talk(a, b);
    EXPECT_EQ(a.read(), "an answer");
    EXPECT_TRUE(a.ended());
    EXPECT_TRUE(a.take_in("what comes after the end").ok());
    EXPECT_EQ(a.read(), "");
}

// What keeps a traffic key from being used for ever: a message of its own, which is longer than those of one byte.
TEST(TlsSession, ChangesItsTrafficKey) {
    TlsSession a = client();
    TlsSession b = server();
    expect_talk(a, b);
    constexpr std::size_t batch = 1 << 14;
    constexpr std::size_t one_byte = 5 + 1 + 1 + 16;
    int changes = 0;
    for (std::size_t sent = 0; sent < (1 << 18) + batch; sent += batch) {
        for (std::size_t i = 0; i < batch; ++i) ASSERT_TRUE(a.write("x").ok());
        const std::string wire = a.take_out();
        if (wire.size() != batch * one_byte) ++changes;
        ASSERT_TRUE(b.take_in(wire).ok());
        ASSERT_EQ(b.read(), std::string(batch, 'x'));
    }
    EXPECT_EQ(changes, 1);
    ASSERT_TRUE(b.write("still there").ok());
    expect_talk(a, b);
    EXPECT_EQ(a.read(), "still there");
}

void expect_refused(const Result<void>& result, ErrorCode code) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, code) << result.error().to_string();
}

TEST(TlsSession, RefusesAnotherKey) {
    for (const bool early : {false, true}) {
        TlsSession a = client(key);
        TlsSession b = server(other_key);
        EXPECT_TRUE(!early || a.write("a secret").ok());
        const Talk result = talk(a, b);
        expect_refused(result.server, ErrorCode::permission_denied);
        expect_refused(result.client, ErrorCode::permission_denied);
        EXPECT_EQ(result.client.error().message, "the other end has another key");
        EXPECT_FALSE(a.established());
        EXPECT_FALSE(b.established());
        EXPECT_EQ(b.read(), "");
        // And goes on refusing.
        expect_refused(b.take_in(client(other_key).take_out()), ErrorCode::permission_denied);
        expect_refused(a.write("hello?"), ErrorCode::permission_denied);
        EXPECT_FALSE(b.established());
    }
}

// One bit of 256 is enough.
TEST(TlsSession, RefusesAKeyThatIsAlmostRight) {
    for (const std::size_t at : {0u, 31u}) {
        std::string almost = key;
        almost[at] ^= 1;
        TlsSession a = client(almost);
        TlsSession b = server(key);
        expect_refused(talk(a, b).server, ErrorCode::permission_denied);
    }
}

TEST(TlsSession, RefusesGarbage) {
    for (const Tls::Role role : {Tls::Role::server, Tls::Role::client}) {
        for (const std::string& text :
             {std::string("GET / HTTP/1.1\r\nHost: node7\r\n\r\n"), std::string("SSH-2.0-OpenSSH_9.2\r\n"),
              std::string(100, '\0'), std::string(100, '\xff'), numbers(20'000)}) {
            TlsSession session = tls().session(role, key).value();
            expect_refused(session.take_in(text), ErrorCode::io_error);
            EXPECT_FALSE(session.established());
            expect_refused(session.take_in(text), ErrorCode::io_error);
        }
    }
}

// The client's first words are hashed into what proves the key, the server's into its Finished.
TEST(TlsSession, RefusesAHandshakeThatWasTamperedWith) {
    const std::size_t asked_size = client().take_out().size();
    for (std::size_t at = 5; at < asked_size; at += 7) {
        TlsSession a = client();
        TlsSession b = server();
        std::string asked = a.take_out();
        asked[at] ^= 0x10;
        (void)!b.take_in(asked).ok();
        talk(a, b);
        EXPECT_FALSE(a.established() && b.established()) << at;
        EXPECT_FALSE(b.established()) << at;
    }
    TlsSession model = server();
    ASSERT_TRUE(model.take_in(client().take_out()).ok());
    const std::size_t answered_size = model.take_out().size();
    for (std::size_t at = 5; at < answered_size; at += 7) {
        TlsSession a = client();
        TlsSession b = server();
        ASSERT_TRUE(b.take_in(a.take_out()).ok());
        std::string answered = b.take_out();
        answered[at] ^= 0x10;
        const auto taken = a.take_in(answered);
        EXPECT_FALSE(a.established()) << at;
        talk(a, b);
        EXPECT_FALSE(b.established()) << at;
    }
}

TEST(TlsSession, RefusesARecordThatWasTamperedWith) {
    // The kind of the record and its size, the text, what proves it.
    for (const std::size_t at : {0u, 3u, 4u, 5u, 10u, 20u, 30u}) {
        TlsSession a = client();
        TlsSession b = server();
        expect_talk(a, b);
        ASSERT_TRUE(a.write("pay 10 to node7").ok());
        std::string wire = a.take_out();
        wire[at] ^= 1;
        // A size that is too great is told only by what comes next.
        ASSERT_TRUE(a.write(numbers(1000)).ok());
        wire += a.take_out();
        expect_refused(b.take_in(wire), ErrorCode::io_error);
        EXPECT_EQ(b.read(), "") << at;
        EXPECT_FALSE(b.established());
        EXPECT_FALSE(b.take_out().empty()) << "the other end is told";
    }
}

TEST(TlsSession, RefusesRecordsOutOfOrder) {
    TlsSession a = client();
    TlsSession b = server();
    expect_talk(a, b);
    ASSERT_TRUE(a.write("one").ok());
    const std::string one = a.take_out();
    ASSERT_TRUE(b.take_in(one).ok());
    EXPECT_EQ(b.read(), "one");
    expect_refused(b.take_in(one), ErrorCode::io_error);
    EXPECT_EQ(b.read(), "") << "not twice";
}

// Whoever has heard all that a client said does not get in by saying it again.
TEST(TlsSession, RefusesWhatWasHeard) {
    TlsSession a = client();
    TlsSession b = server();
    ASSERT_TRUE(a.write("open the door").ok());
    const std::string first = a.take_out();
    ASSERT_TRUE(b.take_in(first).ok());
    ASSERT_TRUE(a.take_in(b.take_out()).ok());
    const std::string second = a.take_out();
    ASSERT_TRUE(b.take_in(second).ok());
    ASSERT_TRUE(b.established());
    EXPECT_EQ(b.read(), "open the door");

    TlsSession fresh = server();
    ASSERT_TRUE(fresh.take_in(first).ok());
    EXPECT_FALSE(fresh.established());
    EXPECT_EQ(fresh.read(), "");
    expect_refused(fresh.take_in(second), ErrorCode::io_error);
    EXPECT_FALSE(fresh.established());
    EXPECT_EQ(fresh.read(), "");
}

TEST(TlsSession, IsNotEstablishedByHalfAHandshake) {
    TlsSession whole_client = client();
    TlsSession whole_server = server();
    ASSERT_TRUE(whole_server.take_in(whole_client.take_out()).ok());
    const std::string answer = whole_server.take_out();
    ASSERT_TRUE(whole_client.take_in(std::string_view(answer).substr(0, answer.size() - 1)).ok());
    EXPECT_FALSE(whole_client.established());
    EXPECT_EQ(whole_client.take_out(), "");
    ASSERT_TRUE(whole_client.take_in(std::string_view(answer).substr(answer.size() - 1)).ok());
    EXPECT_TRUE(whole_client.established());
    const std::string last = whole_client.take_out();
    ASSERT_TRUE(whole_server.take_in(std::string_view(last).substr(0, last.size() - 1)).ok());
    EXPECT_FALSE(whole_server.established());
    ASSERT_TRUE(whole_server.take_in(std::string_view(last).substr(last.size() - 1)).ok());
    EXPECT_TRUE(whole_server.established());
}

// OpenSSL as others use it. Nothing is linked here either.
template <typename Function>
Function* find(const char* library, const char* name) {
    Function* function = nullptr;
    EXPECT_TRUE(DynamicLibrary::open(library)->bind(function, name).ok()) << name;
    return function;
}
#define SIDESTEP_SSL(name) find<decltype(::name)>("libssl.so.3", #name)
#define SIDESTEP_CRYPTO(name) find<decltype(::name)>("libcrypto.so.3", #name)

// One who speaks TLS without the key: a server shows a certificate.
class Stranger {
public:
    Stranger(Tls::Role role, int version) {
        SSL_CTX* context = SIDESTEP_SSL(SSL_CTX_new)(SIDESTEP_SSL(TLS_method)());
        SIDESTEP_SSL(SSL_CTX_ctrl)(context, SSL_CTRL_SET_MAX_PROTO_VERSION, version, nullptr);
        if (role == Tls::Role::server) show_certificate(context);
        ssl_ = SIDESTEP_SSL(SSL_new)(context);
        SIDESTEP_SSL(SSL_CTX_free)(context);
        in_ = SIDESTEP_CRYPTO(BIO_new)(SIDESTEP_CRYPTO(BIO_s_mem)());
        out_ = SIDESTEP_CRYPTO(BIO_new)(SIDESTEP_CRYPTO(BIO_s_mem)());
        SIDESTEP_SSL(SSL_set_bio)(ssl_, in_, out_);
        const bool server = role == Tls::Role::server;
        (server ? SIDESTEP_SSL(SSL_set_accept_state) : SIDESTEP_SSL(SSL_set_connect_state))(ssl_);
    }
    ~Stranger() { SIDESTEP_SSL(SSL_free)(ssl_); }
    Stranger(const Stranger&) = delete;
    Stranger& operator=(const Stranger&) = delete;

    std::string answer(const std::string& wire) {
        if (!wire.empty()) SIDESTEP_CRYPTO(BIO_write)(in_, wire.data(), static_cast<int>(wire.size()));
        SIDESTEP_SSL(SSL_do_handshake)(ssl_);
        std::string said(SIDESTEP_CRYPTO(BIO_ctrl_pending)(out_), '\0');
        if (!said.empty()) SIDESTEP_CRYPTO(BIO_read)(out_, said.data(), static_cast<int>(said.size()));
        return said;
    }

private:
    void show_certificate(SSL_CTX* context) {
        EVP_PKEY* pair = SIDESTEP_CRYPTO(EVP_PKEY_Q_keygen)(nullptr, nullptr, "EC", "P-256");
        X509* certificate = SIDESTEP_CRYPTO(X509_new)();
        const auto from_now = SIDESTEP_CRYPTO(X509_gmtime_adj);
        from_now(SIDESTEP_CRYPTO(X509_getm_notBefore)(certificate), -60);
        from_now(SIDESTEP_CRYPTO(X509_getm_notAfter)(certificate), 3600);
        SIDESTEP_CRYPTO(X509_set_pubkey)(certificate, pair);
        SIDESTEP_CRYPTO(X509_sign)(certificate, pair, SIDESTEP_CRYPTO(EVP_sha256)());
        EXPECT_EQ(SIDESTEP_SSL(SSL_CTX_use_certificate)(context, certificate), 1);
        EXPECT_EQ(SIDESTEP_SSL(SSL_CTX_use_PrivateKey)(context, pair), 1);
        SIDESTEP_CRYPTO(X509_free)(certificate);
        SIDESTEP_CRYPTO(EVP_PKEY_free)(pair);
    }

    SSL* ssl_ = nullptr;
    BIO* in_ = nullptr;
    BIO* out_ = nullptr;
};

// The first failure of a session that talks with a stranger.
Result<void> meet(TlsSession& session, Stranger& stranger) {
    for (int turns = 0; turns < 10; ++turns)
        if (auto taken = session.take_in(stranger.answer(session.take_out())); !taken) return taken;
    return {};
}

TEST(TlsSession, TakesNoCertificateForTheKey) {
    Stranger stranger(Tls::Role::server, TLS1_3_VERSION);
    TlsSession session = client();
    ASSERT_TRUE(session.write("a secret").ok());
    expect_refused(meet(session, stranger), ErrorCode::permission_denied);
    EXPECT_FALSE(session.established());
}

TEST(TlsSession, RefusesAClientWithoutAKey) {
    Stranger stranger(Tls::Role::client, TLS1_3_VERSION);
    TlsSession session = server();
    expect_refused(meet(session, stranger), ErrorCode::permission_denied);
    EXPECT_FALSE(session.established());
}

TEST(TlsSession, RefusesOlderTls) {
    for (const Tls::Role role : {Tls::Role::server, Tls::Role::client}) {
        Stranger stranger(role, TLS1_2_VERSION);
        TlsSession session = role == Tls::Role::server ? client() : server();
        expect_refused(meet(session, stranger), ErrorCode::io_error);
        EXPECT_FALSE(session.established());
    }
}

// OpenSSL keeps the errors of a thread, whoever made them, and takes them for those of the next call.
TEST(TlsSession, MindsNoErrorOfOthersAndLeavesNone) {
    const auto make_error = [] {
        SIDESTEP_CRYPTO(ERR_new)();
        SIDESTEP_CRYPTO(ERR_set_error)(ERR_LIB_SSL, SSL_R_BAD_LENGTH, nullptr);
    };
    const auto errors = SIDESTEP_CRYPTO(ERR_peek_error);
    TlsSession a = client();
    TlsSession b = server();
    const std::string asked = a.take_out();
    make_error();
    ASSERT_NE(errors(), 0u);
    EXPECT_TRUE(b.take_in(asked.substr(0, 10)).ok()) << "it waits for more";
    EXPECT_EQ(errors(), 0u);
    EXPECT_TRUE(b.take_in(asked.substr(10)).ok());
    ASSERT_TRUE(a.take_in(b.take_out()).ok());
    make_error();
    expect_talk(a, b);
    ASSERT_TRUE(a.write("x").ok());
    const std::string wire = a.take_out();
    make_error();
    EXPECT_TRUE(b.take_in(wire).ok());
    EXPECT_EQ(b.read(), "x");
    expect_refused(b.take_in(std::string(100, 'x')), ErrorCode::io_error);
    EXPECT_EQ(errors(), 0u);
}

}  // namespace
}  // namespace sidestep::driver
