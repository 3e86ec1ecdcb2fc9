// A batch is one request to each node, and few frames, whatever the number of its pieces.
#include <map>
#include <set>
#include <tuple>

#include "backend/nearness.hpp"
#include "backend/network.hpp"
#include "backends/ncclnet/message.hpp"
#include "base/try.hpp"
#include "tests/network/ncclnet_rig.hpp"
#include "tests/network/nodes.hpp"
#include "tests/network/proxy.hpp"
#include "wire/data_hello.hpp"

namespace sidestep {
namespace {

namespace ncclnet = backends::ncclnet;
using backend::Frame;
using test::Proxy;

constexpr std::size_t piece_count = 4000;
constexpr Bytes piece_bytes = 64;
constexpr Bytes batch_bytes = piece_count * piece_bytes;
// Lists of places, and for each its bytes or a question for them.
constexpr std::size_t most_frames = 2 * (piece_count / backend::most_places + 1);

// What a client has asked of a node over the data sockets that a proxy stands in.
struct Asked {
    std::set<std::uint64_t> requests;
    std::set<Frame::Kind> kinds;
    std::size_t frames = 0;
    std::map<unsigned, std::size_t> to_gpus;  // how many tell of which

    // `by_plugin`: the sockets are rails of one (backends/ncclnet/message.hpp).
    explicit Asked(Proxy& proxy, bool by_plugin = false) {
        for (const std::string& sent : proxy.recorded()) {
            if (!sent.starts_with(wire::data_magic)) continue;
            std::string_view rest = std::string_view(sent).substr(wire::data_hello_bytes + wire::code_bytes);
            if (by_plugin) rest.remove_prefix(std::min(rest.size(), ncclnet::greeting_bytes));
            while (rest.size() >= (by_plugin ? ncclnet::message_bytes : backend::frame_bytes)) {
                const auto message = by_plugin ? ncclnet::parse_message(bytes_of(rest)) : frame_in(rest);
                if (!message) {
                    ADD_FAILURE() << message.error().to_string();
                    return;
                }
                const Bytes head = by_plugin ? ncclnet::message_bytes : backend::frame_bytes;
                rest.remove_prefix(std::min<Bytes>(rest.size(), head + message->follows()));
                if (message->has_frame()) add(message->frame);
            }
        }
    }

private:
    static const unsigned char* bytes_of(std::string_view text) {
        return reinterpret_cast<const unsigned char*>(text.data());
    }
    static Result<ncclnet::Message> frame_in(std::string_view text) {
        SIDESTEP_TRY(const Frame frame, backend::parse_frame(bytes_of(text)));
        ncclnet::Message message;
        message.frame = frame;
        return message;
    }
    void add(const Frame& frame) {
        if (frame.kind == Frame::Kind::confirm) return;
        requests.insert(frame.request);
        kinds.insert(frame.kind);
        ++frames;
        ++to_gpus[frame.to_gpu];
    }
};

// Of which the frames tell that are not in `before`.
std::set<unsigned> told_since(const Asked& after, const std::map<unsigned, std::size_t>& before = {}) {
    std::set<unsigned> told;
    for (const auto& [gpu, count] : after.to_gpus) {
        const auto found = before.find(gpu);
        if (found == before.end() || found->second < count) told.insert(gpu);
    }
    return told;
}

// One node that its clients know by two names, behind a proxy for each.
class BatchRequests : public test::Nodes {
protected:
    BatchRequests() {
        to_n.record();
        to_m.record();
        connect();
    }
    ~BatchRequests() override { here.reset(); }
    void connect() {
        ContextOptions options{"dgx-h100"};
        options.nodes = "n=" + to_n.address() + ",m=" + to_m.address();
        options.key_file = path("key");
        *here = *Context::open(std::move(options));
    }
    // The pieces of one end after the other; those of the other end the other way round, so that no two belong together.
    static void add(std::vector<BatchItem>& items, const Allocation& from, const Allocation& to) {
        for (std::size_t i = 0; i < piece_count; ++i)
            items.push_back({from.buffer().slice(i * piece_bytes, piece_bytes),
                             to.buffer().slice((piece_count - 1 - i) * piece_bytes, piece_bytes)});
    }
    Allocation memory(const char* place) const { return *here->allocate(*Place::parse(place), batch_bytes); }

    Proxy to_n{port()}, to_m{port()};
};

class WaysOfBatches : public BatchRequests,
                      public testing::WithParamInterface<std::tuple<const char*, const char*>> {};

TEST_P(WaysOfBatches, AreOneRequest) {
    const auto [from, to] = GetParam();
    const Allocation source = memory(from), target = memory(to);
    const std::string text = test::text_of(batch_bytes, 1);
    std::string came(batch_bytes, '?'), expected;
    ASSERT_TRUE(here->copy(Buffer::host(text.data(), batch_bytes), source.buffer()).wait());
    const Asked before(to_n);
    std::vector<BatchItem> items;
    add(items, source, target);
    const auto done = here->copy_batch(items).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    const Asked after(to_n);
    EXPECT_EQ(after.requests.size() - before.requests.size(), 1u);
    const bool past_here = !source.place().node().empty() && !target.place().node().empty();
    EXPECT_LE(after.frames - before.frames, past_here ? piece_count : most_frames);
    // What the first node brings the second together depends on what it has heard at a time.
    const Asked beyond(to_m);
    EXPECT_EQ(beyond.frames > 0, past_here);
    // One copy, the batch, and what its first node passes on: each tells the GPU that the bytes are for.
    using Told = std::set<unsigned>;
    const unsigned first = backend::told_gpu(source.place()), last = backend::told_gpu(target.place());
    EXPECT_EQ(told_since(before), source.place().node().empty() ? Told{} : Told{first});
    EXPECT_EQ(told_since(after, before.to_gpus), Told{last});
    EXPECT_EQ(told_since(beyond), past_here ? Told{last} : Told{});
    EXPECT_LT(beyond.frames, piece_count / 8);
    ASSERT_TRUE(here->copy(target.buffer(), Buffer::host(came.data(), batch_bytes)).wait());
    for (std::size_t i = piece_count; i-- > 0;) expected += text.substr(i * piece_bytes, piece_bytes);
    EXPECT_TRUE(came == expected);
}

INSTANTIATE_TEST_SUITE_P(Ways, WaysOfBatches,
                         testing::Values(std::tuple{"host", "n/host"}, std::tuple{"n/host", "host"},
                                         std::tuple{"host", "n/gpu:1"}, std::tuple{"n/gpu:1", "host"},
                                         std::tuple{"n/host", "m/host"}, std::tuple{"n/gpu:1", "m/gpu:2"}));

// Pieces for two nodes, in turns.
TEST_F(BatchRequests, AreOneToEachOfTwo) {
    const Allocation source = memory("host"), first = memory("n/host"), second = memory("m/host");
    std::vector<BatchItem> a, b, items;
    add(a, source, first);
    add(b, source, second);
    for (std::size_t i = 0; i < piece_count; ++i) items.insert(items.end(), {a[i], b[i]});
    const auto done = here->copy_batch(items).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    for (Proxy* node : {&to_n, &to_m}) {
        const Asked asked(*node);
        EXPECT_EQ(asked.requests.size(), 1u);
        EXPECT_LE(asked.frames, most_frames);
    }
}

// Keys and values of a cache, in turns, where a plugin takes memory of GPUs as it is.
TEST_F(BatchRequests, OfTwoAllocationsOfAGpuInTurns) {
    const wire::test::StandIn plugin;
    ::setenv("SIDESTEP_NCCL_NET", plugin.new_name().c_str(), 1);
    ::setenv("SIDESTEP_NETWORK", "ncclnet", 1);
    serve(allow);
    connect();
    for (const char* name : {"SIDESTEP_NETWORK", "SIDESTEP_NCCL_NET"}) ::unsetenv(name);
    const std::string text = test::text_of(2 * batch_bytes, 1);
    std::string came(2 * batch_bytes, '?');
    const Allocation keys = memory("gpu:0"), values = memory("gpu:0");
    const Allocation first = memory("n/gpu:1"), second = memory("n/gpu:1");
    const auto copy = [&](const Buffer& from, const Buffer& to) {
        const auto done = here->copy(from, to).wait();
        ASSERT_TRUE(done) << done.error().to_string();
    };
    copy(Buffer::host(text.data(), batch_bytes), keys.buffer());
    copy(Buffer::host(text.data() + batch_bytes, batch_bytes), values.buffer());
    copy(keys.buffer(), first.buffer());  // the link has been tried out by then
    const Asked before(to_n, true);
    std::vector<BatchItem> a, b, items;
    add(a, keys, first);
    add(b, values, second);
    for (std::size_t i = 0; i < piece_count; ++i) items.insert(items.end(), {a[i], b[i]});
    const auto done = here->copy_batch(items).wait();
    ASSERT_TRUE(done) << done.error().to_string();
    const Asked after(to_n, true);
    EXPECT_LT(after.requests.size() - before.requests.size(), piece_count / 20) << "a few for each call";
    EXPECT_EQ(told_since(after, before.to_gpus), std::set<unsigned>{2});
    for (BatchItem& item : items) std::swap(item.from, item.to);
    copy(Buffer::host(came.data(), batch_bytes), keys.buffer());
    copy(Buffer::host(came.data(), batch_bytes), values.buffer());
    ASSERT_TRUE(here->copy_batch(items).wait());
    EXPECT_EQ(told_since(Asked(to_n, true), after.to_gpus), std::set<unsigned>{1}) << "questions too";
    copy(keys.buffer(), Buffer::host(came.data(), batch_bytes));
    copy(values.buffer(), Buffer::host(came.data() + batch_bytes, batch_bytes));
    EXPECT_TRUE(came == text);
}

}  // namespace
}  // namespace sidestep
