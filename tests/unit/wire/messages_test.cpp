// What the control connection says: every message comes back as it was sent, and nothing else is taken for one.
#include "wire/messages.hpp"

#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <sidestep/network.hpp>
#include "base/message.hpp"
#include "wire/engines.hpp"

namespace sidestep::wire {
namespace {

using base::MessageWriter;

// What was parsed, written again; nothing where it was refused.
using Again = std::function<Result<std::string>(std::string_view)>;

template <typename Parse>
Again written_again(Parse parse) {
    return [parse](std::string_view body) -> Result<std::string> {
        auto parsed = parse(body);
        if (!parsed) return parsed.error();
        return to_body(*parsed);
    };
}

struct Sample {
    const char* name;
    std::string body;
    Again again;
};

Hello full_hello() {
    Hello hello;
    hello.software = "sidestep 0.1.0";
    hello.node = "node7";
    hello.session = 0x1122334455667788;
    hello.key = std::string("k\0y", 3) + std::string(29, '\xff');
    hello.sockets = 8;
    hello.checked = true;
    hello.engines = {"verbs", "tcp"};
    return hello;
}

backend::Description full_description() {
    backend::Description description;
    description.place = Place::file("/data/x");
    description.memory = MemoryKind::storage;
    description.size = 1ull << 40;
    description.identity = 77;
    description.version = 78;
    return description;
}

AttachRequest full_attach() {
    AttachRequest request;
    request.buffer = Buffer::file("/data/x", 4096, 1 << 20);
    request.options.access = backend::Access::write;
    request.options.page_cache = PageCache::bypass;
    request.options.sync_file = true;
    request.options.expected_size = 1ull << 33;
    request.options.identity = 5;
    request.options.version = 6;
    return request;
}

Report full_report() {
    return Report{{"tmpfs refuses O_DIRECT", "", std::string(4000, 'n')}, {1, 2, 1ull << 50}};
}

void* address_of(std::uint64_t number) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
}

const std::vector<Buffer>& sample_buffers() {
    static const std::vector<Buffer> all = {
        Buffer::host(address_of(0x7f0000001000), 4096),
        Buffer::memory(Place::host(1), address_of(0x7f0000001000), 1),
        Buffer::gpu(3, address_of(0x7f1234567000), 1ull << 36),
        Buffer::memory(Place::p2pmem("0000:03:00.0"), address_of(4096), 8),
        Buffer::file("/data/x"),
        Buffer::file(std::string(longest_path, 'p'), 1, 2),
        Buffer::file("/data/x", 0, Buffer::whole - 1),
        Buffer::shared("kv"),
        Buffer::shared("kv", 10, 20),
    };
    return all;
}

std::vector<Sample> samples() {
    std::vector<Sample> all = {
        {"hello", to_body(full_hello()), written_again(parse_hello)},
        {"description", to_body(full_description()), written_again(parse_description)},
        {"allocate", to_body(AllocateRequest{Place::gpu(2), 12345, MemoryKind::vmm}),
         written_again(parse_allocate)},
        {"allocated", to_body(Allocated{Place::host(1), 0x7f00, MemoryKind::pinned}),
         written_again(parse_allocated)},
        {"attach", to_body(full_attach()), written_again(parse_attach)},
        {"attached", to_body(Attached{9, "straight into host memory"}), written_again(parse_attached)},
        {"number", to_body(std::uint64_t{1} << 63), written_again(parse_number)},
        {"token", to_body(std::string(token_bytes, '\xff')), written_again(parse_token)},
        {"reach", to_body(ReachRequest{"10.0.0.2,[::1]:47900", std::string(token_bytes, 't'), 1ull << 63}),
         written_again(parse_reach)},
        {"list", to_body(ListRequest{"/data", "model-00001-of-00002.safetensors"}),
         written_again(parse_list)},
        {"names", to_body(Names{{"a", "b c", std::string(255, 'n')}, true}), written_again(parse_names)},
        {"no names", to_body(Names{}), written_again(parse_names)},
        {"report", to_body(full_report()), written_again(parse_report)},
        {"no notes", to_body(Report{}), written_again(parse_report)},
    };
    for (const Buffer& buffer : sample_buffers())
        all.push_back({"buffer", to_body(buffer), written_again(parse_buffer)});
    return all;
}

TEST(WireMessages, ComeBackAsTheyWereSent) {
    for (const Sample& sample : samples()) {
        const auto again = sample.again(sample.body);
        ASSERT_TRUE(again.ok()) << sample.name << ": " << again.error().to_string();
        EXPECT_EQ(*again, sample.body) << sample.name;
    }
}

TEST(WireMessages, HelloSaysWhoSpeaks) {
    const auto hello = parse_hello(to_body(full_hello()));
    ASSERT_TRUE(hello.ok()) << hello.error().to_string();
    EXPECT_EQ(hello->oldest, oldest_protocol);
    EXPECT_EQ(hello->newest, protocol_version);
    EXPECT_EQ(hello->software, "sidestep 0.1.0");
    EXPECT_EQ(hello->node, "node7");
    EXPECT_EQ(hello->session, 0x1122334455667788u);
    EXPECT_EQ(hello->key, full_hello().key);
    EXPECT_EQ(hello->sockets, 8);
    EXPECT_TRUE(hello->checked);
    EXPECT_EQ(hello->engines, full_hello().engines);
    Hello many = full_hello();
    many.engines.assign(8, "tcp");
    EXPECT_TRUE(parse_hello(to_body(many)).ok());
    many.engines.emplace_back("tcp");
    EXPECT_FALSE(parse_hello(to_body(many)).ok());
    many.engines = {std::string(17, 'e')};
    EXPECT_FALSE(parse_hello(to_body(many)).ok());
}

TEST(WireMessages, BuffersKeepEveryPart) {
    for (const Buffer& sent : sample_buffers()) {
        const auto came = parse_buffer(to_body(sent));
        ASSERT_TRUE(came.ok()) << sent.to_string() << came.error().to_string();
        EXPECT_EQ(came->place(), sent.place());
        EXPECT_EQ(came->address(), sent.address()) << sent.to_string();
        EXPECT_EQ(came->offset(), sent.offset()) << sent.to_string();
        EXPECT_EQ(came->size(), sent.size()) << sent.to_string();
        EXPECT_EQ(came->whole_file(), sent.whole_file()) << sent.to_string();
    }
}

TEST(WireMessages, FieldsStandWhereTheyBelong) {
    const auto description = parse_description(to_body(full_description()));
    ASSERT_TRUE(description.ok());
    EXPECT_EQ(description->place, Place::file("/data/x"));
    EXPECT_EQ(description->memory, MemoryKind::storage);
    EXPECT_EQ(description->size, 1ull << 40);
    EXPECT_EQ(description->identity, 77u);
    EXPECT_EQ(description->version, 78u);
    const auto allocate = parse_allocate(to_body(AllocateRequest{Place::gpu(2), 12345, MemoryKind::vmm}));
    ASSERT_TRUE(allocate.ok());
    EXPECT_EQ(allocate->place, Place::gpu(2));
    EXPECT_EQ(allocate->bytes, 12345u);
    EXPECT_EQ(allocate->kind, MemoryKind::vmm);
    const auto allocated = parse_allocated(to_body(Allocated{Place::host(1), 0x7f00, MemoryKind::pinned}));
    ASSERT_TRUE(allocated.ok());
    EXPECT_EQ(allocated->place, Place::host(1));
    EXPECT_EQ(allocated->address, 0x7f00u);
    EXPECT_EQ(allocated->kind, MemoryKind::pinned);
    const auto attached = parse_attached(to_body(Attached{9, "straight"}));
    ASSERT_TRUE(attached.ok());
    EXPECT_EQ(attached->region, 9u);
    EXPECT_EQ(attached->way, "straight");
    const auto reach = parse_reach(to_body(ReachRequest{"10.0.0.2", "token", 12}));
    ASSERT_TRUE(reach.ok());
    EXPECT_EQ(reach->addresses, "10.0.0.2");
    EXPECT_EQ(reach->token, "token");
    EXPECT_EQ(reach->size, 12u);
    const auto report = parse_report(to_body(full_report()));
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->notes, full_report().notes);
    EXPECT_EQ(report->storage.gpu_direct, 1u);
    EXPECT_EQ(report->storage.o_direct, 2u);
    EXPECT_EQ(report->storage.page_cache, 1ull << 50);
}

TEST(WireMessages, AttachKeepsEveryOption) {
    const auto same = [](const AttachRequest& sent) {
        const auto came = parse_attach(to_body(sent));
        ASSERT_TRUE(came.ok()) << came.error().to_string();
        EXPECT_EQ(came->buffer.to_string(), sent.buffer.to_string());
        EXPECT_EQ(came->options.access, sent.options.access);
        EXPECT_EQ(came->options.page_cache, sent.options.page_cache);
        EXPECT_EQ(came->options.sync_file, sent.options.sync_file);
        EXPECT_EQ(came->options.strict, sent.options.strict);
        EXPECT_EQ(came->options.expected_size, sent.options.expected_size);
        EXPECT_EQ(came->options.identity, sent.options.identity);
        EXPECT_EQ(came->options.version, sent.options.version);
    };
    AttachRequest request = full_attach();
    same(request);
    request.options.sync_file = false;
    request.options.strict = true;
    same(request);
    request.options.access = backend::Access::read;
    request.options.page_cache = PageCache::automatic;
    same(request);
}

TEST(WireMessages, NoPartOfAMessageIsAMessage) {
    for (const Sample& sample : samples()) {
        for (std::size_t size = 0; size < sample.body.size(); ++size) {
            const auto part = sample.again(std::string_view(sample.body).substr(0, size));
            ASSERT_FALSE(part.ok()) << sample.name << " " << size;
            EXPECT_FALSE(part.error().message.empty()) << sample.name;
        }
        for (const char more : {'\0', 'x'}) {
            const auto longer = sample.again(sample.body + more);
            ASSERT_FALSE(longer.ok()) << sample.name;
            EXPECT_EQ(longer.error().code, ErrorCode::io_error) << sample.name;
        }
    }
}

// Wherever a number is made the largest or smallest there is, a message is refused, or means what can be written.
TEST(WireMessages, AbsurdNumbersAreRefusedOrHarmless) {
    for (const Sample& sample : samples()) {
        for (std::size_t at = 0; at + 4 <= std::min<std::size_t>(sample.body.size(), 200); ++at) {
            for (const char* const four :
                 {"\xff\xff\xff\xff", "\xff\xff\xff\x7f", "\0\0\0\x80", "\0\0\0\0"}) {
                std::string body = sample.body;
                body.replace(at, 4, std::string(four, 4));
                const auto once = sample.again(body);
                if (!once) continue;
                const auto twice = sample.again(*once);
                ASSERT_TRUE(twice.ok()) << sample.name << " " << at << twice.error().to_string();
                EXPECT_EQ(*twice, *once) << sample.name << " " << at;
            }
        }
    }
}

TEST(WireMessages, TextsHaveBounds) {
    const auto hello = [](std::size_t software, std::size_t node, std::size_t key) {
        Hello one;
        one.software = std::string(software, 's');
        one.node = std::string(node, 'n');
        one.key = std::string(key, 'k');
        return parse_hello(to_body(one)).ok();
    };
    EXPECT_TRUE(hello(256, 256, 64));
    EXPECT_FALSE(hello(257, 256, 64));
    EXPECT_FALSE(hello(256, 257, 64));
    EXPECT_FALSE(hello(256, 256, 65));
    const auto path = [](std::size_t size) {
        return parse_buffer(to_body(Buffer::file(std::string(size, 'p')))).ok();
    };
    EXPECT_TRUE(path(longest_path));
    EXPECT_FALSE(path(longest_path + 1));
    const auto way = [](std::size_t size) {
        return parse_attached(to_body(Attached{1, std::string(size, 'w')})).ok();
    };
    EXPECT_TRUE(way(4000));
    EXPECT_FALSE(way(4097));
    const auto token = [](std::size_t size) { return parse_token(to_body(std::string(size, 't'))).ok(); };
    EXPECT_TRUE(token(token_bytes));
    EXPECT_FALSE(token(token_bytes + 1));
    const auto reach = [](std::size_t addresses, std::size_t size) {
        return parse_reach(to_body(ReachRequest{std::string(addresses, 'a'), std::string(size, 't'), 1}))
            .ok();
    };
    EXPECT_TRUE(reach(4000, token_bytes));
    EXPECT_FALSE(reach(4097, token_bytes));
    EXPECT_FALSE(reach(1, token_bytes + 1));
    const auto notes = [](int count, std::size_t size) {
        MessageWriter writer;
        writer.put(static_cast<std::uint8_t>(count));
        for (int i = 0; i < count; ++i) writer.put_text(std::string(size, 'n'));
        for (int i = 0; i < 3; ++i) writer.put(std::uint64_t{0});
        return parse_report(writer.take()).ok();
    };
    EXPECT_TRUE(notes(16, 4));
    EXPECT_FALSE(notes(17, 4));
    EXPECT_FALSE(notes(255, 0));
    EXPECT_FALSE(notes(1, 100'000));
}

// Whatever a machine has to say, its own words are short enough to be read at the other end.
TEST(WireMessages, TheLongestFit) {
    const std::string words(100'000, 'w');
    const Report report{std::vector<std::string>(300, words), {}};
    const std::vector<std::string> bodies = {
        to_answer(to_body(report)),
        to_answer(Error{ErrorCode::io_error, words, words, words}),
        to_body(AttachRequest{Buffer::file(std::string(longest_path, 'p')), {}}),
    };
    for (const std::string& body : bodies)
        EXPECT_LE(to_message({Word::answer, 1, body}).size(), longest_message);
    const auto came = parse_answer(bodies[0], "node7");
    ASSERT_TRUE(came.ok());
    const auto read = parse_report(*came);
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_FALSE(read->notes.empty());
    EXPECT_EQ(read->notes.front(), words.substr(0, read->notes.front().size()));
    EXPECT_FALSE(parse_answer(bodies[1], "node7").error().message.empty());
}

TEST(WireMessages, OtherVersionsAreToldApart) {
    struct Case {
        std::uint16_t oldest, newest;
        bool spoken;
    };
    constexpr std::uint16_t own = protocol_version, old = oldest_protocol;
    constexpr std::uint16_t last = std::numeric_limits<std::uint16_t>::max();
    for (const auto& [oldest, newest, spoken] : std::vector<Case>{{own, own, true},
                                                                  {own, last, true},
                                                                  {0, last, true},
                                                                  {own + 1, own + 2, false},
                                                                  {0, old, true},
                                                                  {0, old - 1, false},
                                                                  {0, 0, false},
                                                                  {own + 1, own, false},
                                                                  {own, own - 1, false}}) {
        Hello hello = full_hello();
        hello.oldest = oldest;
        hello.newest = newest;
        // What a later version adds behind is not looked at before it is known that this one is spoken too.
        for (const char* more : {"", "more fields"}) {
            const auto parsed = parse_hello(to_body(hello) + more);
            EXPECT_EQ(parsed.ok(), spoken && *more == '\0') << oldest << " " << newest;
            if (spoken) continue;
            const Error& error = parsed.error();
            EXPECT_EQ(error.code, ErrorCode::unsupported);
            const std::string protocols = std::to_string(oldest) + " to " + std::to_string(newest);
            EXPECT_NE(error.message.find(protocols), std::string::npos) << error.message;
            const std::string ours = "speaks " + std::to_string(old) + " to " + std::to_string(own);
            EXPECT_NE(error.message.find(ours), std::string::npos) << error.message;
            EXPECT_NE(error.message.find("sidestep 0.1.0"), std::string::npos) << error.message;
            EXPECT_FALSE(error.hint.empty());
        }
    }
    std::string other = to_body(full_hello());
    other[0] = 'H';
    EXPECT_EQ(parse_hello(other).error().code, ErrorCode::io_error);
}

struct RawPlace {
    int kind = 0;
    std::int32_t index = -1;
    std::string path{};
    std::uint64_t offset = 0;
    std::uint64_t size = 1;

    std::string place() const {
        return MessageWriter().put(static_cast<std::uint8_t>(kind)).put(index).put_text(path).take();
    }
    std::string buffer() const {
        return place() + MessageWriter().put(std::uint64_t{4096}).put(offset).put(size).take();
    }
};

TEST(WireMessages, PlacesThatAreNoneAreRefused) {
    constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
    constexpr int host = 0, gpu = 1, file = 2, shared = 3, p2pmem = 4;
    const std::vector<std::pair<RawPlace, bool>> cases = {
        {{host}, true},
        {{host, 3}, true},
        {{gpu, 0}, true},
        {{gpu, -1}, false},
        {{gpu, std::numeric_limits<std::int32_t>::min()}, false},
        {{file, -1, "x"}, true},
        {{file, -1, ""}, false},
        {{file, -1, std::string("x\0", 2)}, false},
        {{file, -1, std::string("\0", 1)}, false},
        {{file, -1, "x", 1, most - 2}, true},
        {{file, -1, "x", 2, most - 1}, false},
        {{file, -1, "x", most, 1}, false},
        {{file, -1, "x", most, most - 1}, false},
        {{host, -1, "", most, 2}, false},
        {{shared, -1, "kv"}, true},
        {{shared, -1, ""}, false},
        {{shared, -1, "a/b"}, false},
        {{shared, -1, std::string("a\0b", 3)}, false},
        {{p2pmem, -1, "0000:03:00.0"}, true},
        {{p2pmem, -1, "../../etc"}, false},
        {{p2pmem, -1, ""}, false},
        {{5}, false},
        {{255}, false},
    };
    for (const auto& [raw, good] : cases) {
        const auto parsed = parse_buffer(raw.buffer());
        EXPECT_EQ(parsed.ok(), good) << raw.kind << " " << raw.index << " " << raw.path << " " << raw.offset;
        if (good && parsed) {
            EXPECT_EQ(static_cast<int>(parsed->place().kind()), raw.kind);
        }
    }
}

TEST(WireMessages, FieldsWithFewValuesTakeNoOther) {
    const std::string place = RawPlace{}.place();
    for (int kind = 0; kind < 256; ++kind) {
        const bool good = kind <= static_cast<int>(MemoryKind::p2pmem);
        const auto byte = static_cast<std::uint8_t>(kind);
        EXPECT_EQ(parse_allocate(place + MessageWriter().put(std::uint64_t{1}).put(byte).take()).ok(), good);
        EXPECT_EQ(parse_allocated(place + MessageWriter().put(std::uint64_t{1}).put(byte).take()).ok(), good);
        MessageWriter rest;
        rest.put(byte).put(std::uint64_t{1}).put(std::uint64_t{2}).put(std::uint64_t{3});
        EXPECT_EQ(parse_description(place + rest.take()).ok(), good);
    }
    // Access, page cache, sync, strict: the four bytes behind the buffer.
    const std::string attach = to_body(full_attach());
    const std::size_t options = to_body(full_attach().buffer).size();
    const int most[] = {1, static_cast<int>(PageCache::bypass), 1, 1};
    for (std::size_t field = 0; field < 4; ++field) {
        for (int value = 0; value < 256; ++value) {
            std::string body = attach;
            body[options + field] = static_cast<char>(value);
            EXPECT_EQ(parse_attach(body).ok(), value <= most[field]) << field << " " << value;
        }
    }
}

TEST(WireMessages, AnswersAreFieldsOrAnError) {
    const std::string fields("a\0b", 3);
    EXPECT_EQ(*parse_answer(to_answer(fields), "node7"), fields);
    EXPECT_EQ(*parse_answer(to_answer(std::string()), "node7"), "");
    for (int code = 1; code <= static_cast<int>(ErrorCode::internal); ++code) {
        const Error sent{static_cast<ErrorCode>(code), "it broke", "there", "mend it"};
        const auto came = parse_answer(to_answer(sent), "node7");
        ASSERT_FALSE(came.ok());
        EXPECT_EQ(came.error().code, sent.code);
        EXPECT_NE(came.error().message.find("node7"), std::string::npos) << came.error().message;
        EXPECT_NE(came.error().message.find("it broke"), std::string::npos) << came.error().message;
        EXPECT_EQ(came.error().where, "there");
        EXPECT_EQ(came.error().hint, "mend it");
    }
}

TEST(WireMessages, AnswersThatAreNoneAreErrorsOfTheLine) {
    const auto failed = [](int code) {
        return to_answer(Error{static_cast<ErrorCode>(code), "it broke", "there", "mend it"});
    };
    for (const int code : {0, 15, 128, 255}) {
        const auto came = parse_answer(failed(code), "node7");
        ASSERT_FALSE(came.ok());
        EXPECT_EQ(came.error().code, ErrorCode::io_error) << code;
        EXPECT_EQ(came.error().message.find("it broke"), std::string::npos) << came.error().message;
    }
    const std::string whole = failed(2);
    for (std::size_t size = 0; size < whole.size(); ++size) {
        const auto came = parse_answer(std::string_view(whole).substr(0, size), "node7");
        ASSERT_FALSE(came.ok()) << size;
        EXPECT_EQ(came.error().code, ErrorCode::io_error) << size;
    }
    EXPECT_EQ(parse_answer(whole + "x", "node7").error().code, ErrorCode::io_error);
    MessageWriter longer;
    longer.put(char{0}).put(std::uint8_t{2}).put_text(std::string(4097, 'm')).put_text("").put_text("");
    EXPECT_EQ(parse_answer(longer.take(), "node7").error().code, ErrorCode::io_error);
}

TEST(WireEnvelope, NamesAWordAndANumber) {
    for (int word = 1; word <= static_cast<int>(last_word); ++word) {
        for (const std::string& body : {std::string(), std::string("a\0b", 3)}) {
            const auto came = parse_envelope(to_message({static_cast<Word>(word), 0x8877665544332211, body}));
            ASSERT_TRUE(came.ok()) << word;
            EXPECT_EQ(static_cast<int>(came->word), word);
            EXPECT_EQ(came->number, 0x8877665544332211u);
            EXPECT_EQ(came->body, body);
        }
    }
    for (const int word : {0, static_cast<int>(last_word) + 1, 255})
        EXPECT_FALSE(parse_envelope(to_message({static_cast<Word>(word), 1, "x"})).ok()) << word;
    const std::string shortest = to_message({Word::free, 1, ""});
    for (std::size_t size = 0; size < shortest.size(); ++size)
        EXPECT_FALSE(parse_envelope(shortest.substr(0, size)).ok()) << size;
    const std::string longest = to_message({Word::free, 1, std::string(longest_message - 9, 'x')});
    EXPECT_TRUE(parse_envelope(longest).ok());
    EXPECT_FALSE(parse_envelope(longest + "x").ok());
    EXPECT_EQ(to_message({Word::answer, 0x0102, "b"}), std::string("\2\2\1\0\0\0\0\0\0b", 10));
}

}  // namespace
}  // namespace sidestep::wire
