#include "driver/tls_socket.hpp"

#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "driver/dynamic_library.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

constexpr std::size_t cipher_key_bytes = 16;
constexpr std::size_t iv_bytes = 12;
constexpr std::size_t tag_bytes = 16;
constexpr std::size_t record_payload = std::size_t{16} << 10;  // of what is in one
constexpr std::size_t most_ciphertext = record_payload + 256;
constexpr unsigned char application_data = 23;
// What is encrypted before it is sent: it is still in the processor's cache then.
constexpr std::size_t records_at_once = 4;
// RFC 8446, 5.5 allows 2^24.5 under one key.
constexpr std::uint64_t most_records = std::uint64_t{1} << 24;

// Of linux/tls.h, and of kernels newer than its headers may be.
constexpr int level_tls = 282;
constexpr int expect_no_pad = 4;

// clang-format off
#define SIDESTEP_TLS_CIPHER(X) \
    X(EVP_CIPHER_CTX_new) X(EVP_CIPHER_CTX_free) X(EVP_CIPHER_CTX_ctrl) X(EVP_aes_128_gcm) X(EVP_CipherInit_ex) X(EVP_CipherUpdate) \
    X(EVP_CipherFinal_ex)
// clang-format on

struct CipherApi {
#define SIDESTEP_TLS_MEMBER(name) decltype(::name)* name = nullptr;
    SIDESTEP_TLS_CIPHER(SIDESTEP_TLS_MEMBER)
#undef SIDESTEP_TLS_MEMBER
};

Result<CipherApi> load_cipher() {
    SIDESTEP_TRY(const DynamicLibrary crypto, DynamicLibrary::open("libcrypto.so.3"));
    CipherApi api;
#define SIDESTEP_TLS_BIND(name) SIDESTEP_CHECK(crypto.bind(api.name, #name));
    SIDESTEP_TLS_CIPHER(SIDESTEP_TLS_BIND)
#undef SIDESTEP_TLS_BIND
    return api;
}

const Result<CipherApi>& loaded_cipher() {
    static const auto* const api = new Result<CipherApi>(load_cipher());
    return *api;
}

Error key_is_used_up() {
    return Error{ErrorCode::cancelled,
                 "the key of a connection has been used for 256 GiB: another one is made",
                 "TLS",
                 {}};
}

Error tampered() {
    return Error{ErrorCode::io_error, "what the other machine says was tampered with", "TLS", {}};
}

// AES-128-GCM of one direction, record by record.
class Cipher {
public:
    Cipher(const CipherApi& api, std::string_view secret, bool sealing)
        : api_(api), context_(api.EVP_CIPHER_CTX_new(), api.EVP_CIPHER_CTX_free), seals_(sealing) {
        std::copy_n(secret.data() + cipher_key_bytes, iv_bytes, reinterpret_cast<char*>(iv_.data()));
        good_ = context_ != nullptr &&
                api.EVP_CipherInit_ex(context_.get(), api.EVP_aes_128_gcm(), nullptr,
                                      reinterpret_cast<const unsigned char*>(secret.data()), nullptr,
                                      sealing ? 1 : 0) == 1;
    }
    bool good() const { return good_; }
    std::uint64_t records() const { return next_; }

    // Its head is authenticated too.
    bool begin(const unsigned char* head) {
        std::array<unsigned char, iv_bytes> nonce = iv_;
        for (std::size_t i = 0; i < 8; ++i)
            nonce[iv_bytes - 1 - i] ^= static_cast<unsigned char>(next_ >> (8 * i));
        ++next_;
        return api_.EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
               step(head, nullptr, tls_record_head);
    }
    bool step(const void* from, void* to, std::size_t size) {
        int moved = 0;
        return api_.EVP_CipherUpdate(context_.get(), static_cast<unsigned char*>(to), &moved,
                                     static_cast<const unsigned char*>(from), static_cast<int>(size)) == 1 &&
               moved == static_cast<int>(size);
    }
    // Writes the tag, or compares it.
    bool end(unsigned char* tag) {
        int moved = 0;
        std::array<unsigned char, tag_bytes> none;
        if (!seals_ && !control(EVP_CTRL_AEAD_SET_TAG, tag)) return false;
        return api_.EVP_CipherFinal_ex(context_.get(), none.data(), &moved) == 1 &&
               (!seals_ || control(EVP_CTRL_AEAD_GET_TAG, tag));
    }

private:
    bool control(int what, unsigned char* tag) {
        return api_.EVP_CIPHER_CTX_ctrl(context_.get(), what, static_cast<int>(tag_bytes), tag) == 1;
    }
    const CipherApi& api_;
    const std::unique_ptr<EVP_CIPHER_CTX, decltype(::EVP_CIPHER_CTX_free)*> context_;
    const bool seals_;
    bool good_ = false;
    std::array<unsigned char, iv_bytes> iv_{};
    std::uint64_t next_ = 0;
};

// The kernel begins to do it from here on, in that direction.
bool hand_to_kernel(int socket, std::string_view secret, int direction) {
    tls12_crypto_info_aes_gcm_128 info{};
    info.info.version = TLS_1_3_VERSION;
    info.info.cipher_type = TLS_CIPHER_AES_GCM_128;
    std::memcpy(info.key, secret.data(), sizeof(info.key));
    std::memcpy(info.salt, secret.data() + cipher_key_bytes, sizeof(info.salt));
    std::memcpy(info.iv, secret.data() + cipher_key_bytes + sizeof(info.salt), sizeof(info.iv));
    const bool done = ::setsockopt(socket, level_tls, direction, &info, sizeof(info)) == 0;
    ::explicit_bzero(&info, sizeof(info));
    return done;
}

void say_once(const std::string& why) {
    static std::atomic<bool> said{false};
    if (!said.exchange(true))
        base::log(base::LogLevel::warn,
                  fmt::format("OpenSSL encrypts what goes to other machines, which is slower "
                              "than the kernel: {} (modprobe tls)",
                              why));
}

}  // namespace

Result<std::size_t> parse_record_head(const unsigned char* head) {
    const std::size_t size = std::size_t{head[3]} << 8 | head[4];
    if (head[0] != application_data || head[1] != 3 || head[2] != 3 || size <= tag_bytes ||
        size > most_ciphertext)
        return tampered();
    return size;
}

class TlsSocket::Sealer {
public:
    Sealer(const CipherApi& api, std::string_view secret) : cipher_(api, secret, true) {}
    bool good() const { return cipher_.good(); }

    Result<Bytes> send(const TcpSocket& socket, std::span<const TcpSocket::Part> parts) {
        Bytes gone = 0;
        part_ = 0;
        in_part_ = 0;
        // What was encrypted by the last call comes first.
        Bytes sealed = sealed_;
        skip(parts, sealed);
        while (true) {
            if (sealed == 0) {
                SIDESTEP_TRY(sealed, seal(parts));
                if (sealed == 0) return gone;
            }
            const TcpSocket::Part left{buffer_.data() + begin_, end_ - begin_};
            SIDESTEP_TRY(const Bytes sent, socket.send({&left, 1}));
            begin_ += sent;
            sealed_ = begin_ == end_ ? 0 : sealed;
            if (sealed_ != 0) return gone;
            gone += std::exchange(sealed, 0);
        }
    }

private:
    void skip(std::span<const TcpSocket::Part> parts, Bytes bytes) {
        while (bytes > 0 && part_ < parts.size()) {
            const Bytes step = std::min(bytes, parts[part_].size - in_part_);
            in_part_ += step;
            bytes -= step;
            if (in_part_ == parts[part_].size) ++part_, in_part_ = 0;
        }
    }

    // The next bytes of the parts, as records in the buffer.
    Result<Bytes> seal(std::span<const TcpSocket::Part> parts) {
        Bytes left = 0;
        for (std::size_t i = part_; i < parts.size(); ++i) left += parts[i].size;
        left = std::min<Bytes>(left - in_part_, records_at_once * record_payload);
        buffer_.resize(left + records_at_once * (tls_record_head + 1 + tag_bytes));
        begin_ = end_ = 0;
        const Bytes all = left;
        while (left > 0) {
            const Bytes size = std::min<Bytes>(left, record_payload);
            if (cipher_.records() >= most_records) return key_is_used_up();
            if (!seal_record(parts, size))
                return Error{ErrorCode::internal, "OpenSSL cannot encrypt", "EVP", {}};
            left -= size;
        }
        return all;
    }

    bool seal_record(std::span<const TcpSocket::Part> parts, Bytes size) {
        unsigned char* next = buffer_.data() + end_;
        const std::size_t ciphertext = size + 1 + tag_bytes;
        const std::array<unsigned char, tls_record_head> head{application_data, 3, 3,
                                                              static_cast<unsigned char>(ciphertext >> 8),
                                                              static_cast<unsigned char>(ciphertext)};
        std::copy(head.begin(), head.end(), next);
        if (!cipher_.begin(next)) return false;
        next += head.size();
        for (Bytes left = size; left > 0;) {
            const Bytes step = std::min(left, parts[part_].size - in_part_);
            if (step > 0 &&
                !cipher_.step(static_cast<const unsigned char*>(parts[part_].data) + in_part_, next, step))
                return false;
            next += step;
            left -= step;
            skip(parts, step);
            while (part_ < parts.size() && parts[part_].size == 0) ++part_;
        }
        if (!cipher_.step(&application_data, next, 1) || !cipher_.end(next + 1)) return false;
        end_ += tls_record_head + ciphertext;
        return true;
    }

    Cipher cipher_;
    std::vector<unsigned char> buffer_;
    std::size_t begin_ = 0;  // of what is to go out
    std::size_t end_ = 0;
    Bytes sealed_ = 0;  // so many bytes of the parts are in there
    std::size_t part_ = 0;
    Bytes in_part_ = 0;
};

class TlsSocket::Opener {
public:
    Opener(const CipherApi& api, std::string_view secret) : cipher_(api, secret, false) {}
    bool good() const { return cipher_.good(); }
    bool holds() const { return plain_begin_ < plain_end_ || has_record(); }

    Result<std::optional<Bytes>> receive(const TcpSocket& socket, std::span<const TcpSocket::Room> rooms) {
        rooms_ = rooms;
        in_room_ = 0;
        Bytes got = take_plain();
        while (room() > 0) {
            if (!has_record()) {
                SIDESTEP_TRY(const auto came, fill(socket));
                if (!came) break;
                if (*came == 0 && got > 0) break;
                if (*came == 0) return std::optional<Bytes>(0);
                continue;
            }
            SIDESTEP_TRY(const Bytes opened, open_record());
            got += opened;
        }
        return got > 0 ? std::optional<Bytes>(got) : std::nullopt;
    }

private:
    Bytes room() {
        while (!rooms_.empty() && in_room_ == rooms_.front().size) rooms_ = rooms_.subspan(1), in_room_ = 0;
        return rooms_.empty() ? 0 : rooms_.front().size - in_room_;
    }
    bool has_record() const {
        return end_ - begin_ >= tls_record_head && end_ - begin_ >= tls_record_head + size_;
    }

    // What the last rooms had no place for.
    Bytes take_plain() {
        Bytes taken = 0;
        while (plain_begin_ < plain_end_ && room() > 0) {
            const Bytes step = std::min<Bytes>(room(), plain_end_ - plain_begin_);
            std::memcpy(static_cast<unsigned char*>(rooms_.front().data) + in_room_,
                        plain_.data() + plain_begin_, step);
            plain_begin_ += step;
            in_room_ += step;
            taken += step;
        }
        return taken;
    }

    Result<std::optional<Bytes>> fill(const TcpSocket& socket) {
        buffer_.resize(records_at_once * (tls_record_head + most_ciphertext));
        std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
        SIDESTEP_TRY(const auto came, socket.receive(buffer_.data() + end_, buffer_.size() - end_));
        end_ += came.value_or(0);
        SIDESTEP_CHECK(look_at_head());
        return came;
    }

    Result<void> look_at_head() {
        size_ = 0;
        if (end_ - begin_ < tls_record_head) return {};
        SIDESTEP_TRY(size_, parse_record_head(buffer_.data() + begin_));
        return {};
    }

    // Straight into the rooms as far as they reach; the bytes that come into them.
    Result<Bytes> open_record() {
        unsigned char* next = buffer_.data() + begin_;
        if (!cipher_.begin(next)) return tampered();
        next += tls_record_head;
        Bytes left = size_ - 1 - tag_bytes;
        Bytes placed = 0;
        while (left > 0 && room() > 0) {
            const Bytes step = std::min(left, room());
            if (!cipher_.step(next, static_cast<unsigned char*>(rooms_.front().data) + in_room_, step))
                return tampered();
            next += step;
            in_room_ += step;
            left -= step;
            placed += step;
        }
        plain_.resize(std::max(plain_.size(), left > 0 ? record_payload + 256 : 0));
        plain_begin_ = 0;
        plain_end_ = left;
        unsigned char kind = 0;
        if ((left > 0 && !cipher_.step(next, plain_.data(), left)) || !cipher_.step(next + left, &kind, 1) ||
            !cipher_.end(next + left + 1) || kind != application_data)
            return tampered();
        begin_ += tls_record_head + size_;
        SIDESTEP_CHECK(look_at_head());
        return placed;
    }

    Cipher cipher_;
    std::vector<unsigned char> buffer_;
    std::size_t begin_ = 0;  // of what has come and is not open yet
    std::size_t end_ = 0;
    std::size_t size_ = 0;  // what follows the head there, where there is one
    std::vector<unsigned char> plain_;
    std::size_t plain_begin_ = 0;
    std::size_t plain_end_ = 0;
    std::span<const TcpSocket::Room> rooms_;  // of this call
    Bytes in_room_ = 0;
};

TlsSocket::TlsSocket(TcpSocket socket) : socket_(std::move(socket)) {}
TlsSocket::TlsSocket(TlsSocket&&) noexcept = default;
TlsSocket::~TlsSocket() = default;

Result<TlsSocket> TlsSocket::encrypted(TcpSocket socket, std::string_view out, std::string_view in,
                                       Kernel kernel) {
    if (out.size() != tls_secret_bytes || in.size() != tls_secret_bytes)
        return Error{ErrorCode::invalid_argument, "a key of a data socket has another size", "TLS", {}};
    TlsSocket made(std::move(socket));
    made.encrypted_ = true;
    const int number = made.socket_.number();
    bool sends = false;
    bool receives = false;
    if (kernel == Kernel::where_it_can) {
        if (::setsockopt(number, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")) != 0) {
            say_once(system_error(errno, "it has no TLS", "TCP_ULP").to_string());
        } else {
            sends = hand_to_kernel(number, out, TLS_TX);
            receives = hand_to_kernel(number, in, TLS_RX);
            if (!sends || !receives) say_once("it refuses AES-128-GCM of TLS 1.3");
            // It decrypts to where the bytes belong, since nobody pads. Without it they are copied once more.
            const int on = 1;
            if (receives) ::setsockopt(number, level_tls, expect_no_pad, &on, sizeof(on));
        }
    }
    if (sends && receives) return made;
    if (!loaded_cipher()) return loaded_cipher().error();
    if (!sends) made.sealer_ = std::make_unique<Sealer>(*loaded_cipher(), out);
    if (!receives) made.opener_ = std::make_unique<Opener>(*loaded_cipher(), in);
    if ((!sends && !made.sealer_->good()) || (!receives && !made.opener_->good()))
        return Error{ErrorCode::unsupported, "OpenSSL has no AES-128-GCM", "libcrypto.so.3", {}};
    return made;
}

std::string_view TlsSocket::words() const {
    if (!encrypted_) return {};
    return sealer_ == nullptr && opener_ == nullptr ? "encrypted by the kernel" : "encrypted by OpenSSL";
}

Result<Bytes> TlsSocket::send(std::span<const TcpSocket::Part> parts) {
    if (sealer_) return sealer_->send(socket_, parts);
    if (encrypted_ && records_ >= most_records) return key_is_used_up();
    SIDESTEP_TRY(const Bytes sent, socket_.send(parts));
    records_ += (sent + record_payload - 1) / record_payload;
    return sent;
}

Result<std::optional<Bytes>> TlsSocket::receive(std::span<const TcpSocket::Room> rooms) {
    return opener_ ? opener_->receive(socket_, rooms) : socket_.receive(rooms);
}

bool TlsSocket::holds() const {
    return opener_ && opener_->holds();
}

}  // namespace sidestep::driver
