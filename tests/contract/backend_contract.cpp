#include "backend_contract.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <thread>
#include <utility>

#include "contract_ends.hpp"
#include "driver/files.hpp"
#include "tests/started_piece.hpp"

namespace sidestep::contract {
namespace {

using backend::Access;
using backend::Capability;
using backend::Piece;
using backend::Registration;
using test::StartedPiece;

// A backend that has been probed.
struct Opened {
    std::unique_ptr<Topology> topology;
    std::unique_ptr<backend::Backend> backend;
};

Opened open_backend(const BackendUnderTest& under_test) {
    auto topology = under_test.topology();
    EXPECT_TRUE(topology.ok()) << topology.error().to_string();
    Opened opened;
    opened.topology = std::make_unique<Topology>(std::move(*topology));
    opened.backend = under_test.make();
    const auto support = opened.backend->probe(*opened.topology);
    EXPECT_TRUE(support.usable) << support.reason;
    return opened;
}

std::unique_ptr<Registration> attach(backend::Backend& backend, const Buffer& buffer, Access access) {
    backend::AttachOptions options;
    options.access = access;
    auto registration = backend.attach(buffer, options);
    if (registration) return std::move(*registration);
    ADD_FAILURE() << registration.error().to_string();
    return nullptr;
}

testing::AssertionResult finish(StartedPiece& piece) {
    const auto moved = piece.wait();
    if (!moved) return testing::AssertionFailure() << moved.error().to_string();
    return testing::AssertionSuccess();
}

testing::AssertionResult move(backend::Backend& backend, const Piece& piece) {
    StartedPiece started(backend, piece);
    return finish(started);
}

testing::AssertionResult equal(const Content& expected, const Content& found) {
    if (expected.size() != found.size()) return testing::AssertionFailure() << "sizes differ";
    if (expected == found)
        return testing::AssertionSuccess();  // at once, where a sanitizer looks at every access
    const auto [a, b] = std::mismatch(expected.begin(), expected.end(), found.begin());
    return testing::AssertionFailure() << "the first wrong byte is at " << a - expected.begin() << ": "
                                       << int{*b} << " instead of " << int{*a};
}

// Calls `test` with every capability and pair of ends that fit each other (or, the other way round, do
// not).
template <typename Test>
void for_each_pair(const BackendUnderTest& under_test, const Opened& opened, bool fitting, Test test) {
    const auto capabilities = opened.backend->capabilities();
    for (std::size_t i = 0; i < capabilities.size(); ++i) {
        for (const auto& [from, to] : under_test.pairs) {
            if (fits(capabilities[i], from, to, *opened.topology) != fitting) continue;
            const testing::ScopedTrace trace(__FILE__, __LINE__, words(capabilities[i], from, to));
            test(i, from, to);
        }
    }
}

#define SIDESTEP_SKIP_CONTRACT() \
    if (!GetParam().skip.empty()) GTEST_SKIP() << GetParam().skip

TEST_P(BackendContract, ProbeSaysWhatItFound) {
    SIDESTEP_SKIP_CONTRACT();
    auto topology = GetParam().topology();
    ASSERT_TRUE(topology.ok()) << topology.error().to_string();
    const auto backend = GetParam().make();
    EXPECT_FALSE(backend->name().empty());
    const auto support = backend->probe(*topology);
    EXPECT_TRUE(support.usable);
    EXPECT_NE(support.reason, "");
}

TEST_P(BackendContract, CapabilitiesAreConstantAndSane) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    const auto capabilities = opened.backend->capabilities();
    ASSERT_FALSE(capabilities.empty());
    const auto again = opened.backend->capabilities();
    ASSERT_EQ(capabilities.size(), again.size());
    for (std::size_t i = 0; i < capabilities.size(); ++i) {
        const Capability& capability = capabilities[i];
        EXPECT_EQ(capability.engine, again[i].engine);
        EXPECT_EQ(capability.reason, again[i].reason);
        EXPECT_NE(capability.engine, "");
        EXPECT_NE(capability.reason, "");
        EXPECT_FALSE(capability.from_memory.empty());
        EXPECT_FALSE(capability.to_memory.empty());
        EXPECT_GT(capability.efficiency, 0);
        EXPECT_LE(capability.efficiency, 1);
        EXPECT_GE(capability.max_gb_per_s, 0);
        EXPECT_GT(capability.latency_us, 0);
    }
}

TEST_P(BackendContract, EveryCapabilityIsTested) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    std::set<std::size_t> tested;
    for_each_pair(GetParam(), opened, true, [&](std::size_t i, const End&, const End&) { tested.insert(i); });
    const std::string& without_peers = GetParam().without_peers;
    const auto capabilities = opened.backend->capabilities();
    const auto testable =
        std::count_if(capabilities.begin(), capabilities.end(), [&](const Capability& offer) {
            return without_peers.empty() || offer.reach != backend::Reach::peer_access;
        });
    EXPECT_EQ(static_cast<std::ptrdiff_t>(tested.size()), testable);
    if (!without_peers.empty()) GTEST_SKIP() << without_peers << "; every other capability is tested";
}

// One size from and to several offsets, in memory of `room` bytes that is looked at from end to end.
void moves_these_bytes(const BackendUnderTest& under_test, const Opened& opened, std::size_t capability,
                       const End& from, const End& to, Bytes room, std::initializer_list<Bytes> sizes) {
    constexpr std::pair<Bytes, Bytes> offsets[] = {{0, 0}, {3, 5}, {4096, 4097}};
    TestBuffer source(under_test, *opened.backend, from, room);
    TestBuffer target(under_test, *opened.backend, to, room);
    const Content bytes = pattern(room, capability + 1);
    source.write(bytes);
    const auto reading = attach(*opened.backend, source.buffer(), Access::read);
    const auto writing = attach(*opened.backend, target.buffer(), Access::write);
    ASSERT_TRUE(reading && writing);
    const Bytes at_once = opened.backend->capabilities()[capability].at_once;
    for (const Bytes size : sizes) {
        for (const auto& [from_offset, to_offset] : offsets) {
            Content expected(room, 0xEE);
            target.write(expected);
            const Piece piece{reading.get(), from_offset, writing.get(), to_offset,
                              size,          capability,  nullptr};
            {
                test::StartedPiece started(*opened.backend, piece);
                ASSERT_TRUE(started.done() || size > at_once) << size;
                ASSERT_TRUE(finish(started)) << size;
            }
            std::memcpy(expected.data() + to_offset, bytes.data() + from_offset, size);
            ASSERT_TRUE(equal(expected, target.read()))
                << size << " bytes from " << from_offset << " to " << to_offset;
        }
    }
    EXPECT_TRUE(equal(bytes, source.read())) << "the source has changed";
    EXPECT_TRUE(writing->commit().ok());
}

TEST_P(BackendContract, MovesTheseBytesAndNoOthers) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    for_each_pair(GetParam(), opened, true, [&](std::size_t i, const End& from, const End& to) {
        const auto moves = [&](Bytes room, std::initializer_list<Bytes> sizes) {
            moves_these_bytes(GetParam(), opened, i, from, to, room, sizes);
        };
        moves(128_KiB, {1, 63, 4_KiB, 64_KiB, 64_KiB + 1});
        moves(8_MiB + 8_KiB, {1_MiB + 3, 8_MiB + 1});
    });
}

TEST_P(BackendContract, ManyPiecesAreInFlightAtOnce) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    constexpr Bytes size = 100'003;
    constexpr std::size_t count = 200;
    for_each_pair(GetParam(), opened, true, [&](std::size_t i, const End& from, const End& to) {
        TestBuffer source(GetParam(), *opened.backend, from, size * count);
        TestBuffer target(GetParam(), *opened.backend, to, size * count);
        const Content bytes = pattern(size * count, i + 7);
        source.write(bytes);
        const auto reading = attach(*opened.backend, source.buffer(), Access::read);
        const auto writing = attach(*opened.backend, target.buffer(), Access::write);
        ASSERT_TRUE(reading && writing);
        std::deque<StartedPiece> pieces;
        for (std::size_t n = 0; n < count; ++n) {
            pieces.emplace_back(*opened.backend,
                                Piece{reading.get(), n * size, writing.get(), n * size, size, i, nullptr});
            ASSERT_TRUE(pieces.back().begun().ok()) << pieces.back().begun().error().to_string();
        }
        // Looked at in another order than begun.
        for (std::size_t n = count; n > 0; --n) EXPECT_TRUE(finish(pieces[n - 1]));
        EXPECT_TRUE(equal(bytes, target.read()));
    });
}

// Sizes and alignments of every sort, some beyond what goes at once; whatever lies between the targets stays.
TEST_P(BackendContract, BatchesMoveEveryPieceAndNothingElse) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    constexpr Bytes sizes[] = {1, 2, 15, 16, 17, 4095, 4096, 4097, 8192, 20'001, 300'000};
    constexpr std::size_t count = 1500;  // above the 1360 entries of a table of the cuda backend's kernel
    constexpr Bytes room = 16_MiB;
    for_each_pair(GetParam(), opened, true, [&](std::size_t i, const End& from, const End& to) {
        if (opened.backend->batcher() == nullptr) return;
        TestBuffer source(GetParam(), *opened.backend, from, room);
        TestBuffer target(GetParam(), *opened.backend, to, room);
        const Content bytes = pattern(room, i + 21);
        source.write(bytes);
        const auto reading = attach(*opened.backend, source.buffer(), Access::read);
        const auto writing = attach(*opened.backend, target.buffer(), Access::write);
        ASSERT_TRUE(reading && writing);
        for (const std::size_t pieces : {std::size_t{1}, std::size_t{7}, count}) {
            Content expected(room, 0xEE);
            target.write(expected);
            std::vector<Piece> batch;
            Bytes at = 0;
            for (std::size_t n = 0; n < pieces; ++n) {
                const Bytes size = n % 101 == 100 ? sizes[10] : sizes[(n * 7) % 10];
                const Bytes from_at = room - at - size - n % 19;
                batch.push_back({reading.get(), from_at, writing.get(), at + n % 5, size, i, nullptr});
                std::memcpy(expected.data() + at + n % 5, bytes.data() + from_at, size);
                at += size + n % 5 + n % 3;
                ASSERT_LT(at + 400'000, room);
            }
            StartedPiece started(*opened.backend, batch);
            ASSERT_TRUE(finish(started));
            ASSERT_TRUE(equal(expected, target.read())) << pieces << " pieces";
        }
        EXPECT_TRUE(equal(bytes, source.read())) << "the source has changed";
    });
}

TEST_P(BackendContract, ABatchWithAPieceThatIsTooLongIsRefused) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    for_each_pair(GetParam(), opened, true, [&](std::size_t i, const End& from, const End& to) {
        if (opened.backend->batcher() == nullptr) return;
        TestBuffer source(GetParam(), *opened.backend, from, 64_KiB);
        TestBuffer target(GetParam(), *opened.backend, to, 64_KiB);
        const Content before(64_KiB, 0xEE);
        target.write(before);
        const auto reading = attach(*opened.backend, source.buffer(), Access::read);
        const auto writing = attach(*opened.backend, target.buffer(), Access::write);
        ASSERT_TRUE(reading && writing);
        const Piece batch[] = {{reading.get(), 0, writing.get(), 0, 4_KiB, i, nullptr},
                               {reading.get(), 4_KiB, writing.get(), 60_KiB + 1, 4_KiB, i, nullptr}};
        EXPECT_FALSE(StartedPiece(*opened.backend, batch).begun().ok());
        EXPECT_TRUE(equal(before, target.read())) << "nothing of it was begun";
    });
}

TEST_P(BackendContract, SeveralThreadsMayCall) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    constexpr Bytes size = 70'001;
    constexpr std::size_t rounds = 12;
    constexpr std::size_t thread_count = 4;
    for_each_pair(GetParam(), opened, true, [&](std::size_t i, const End& from, const End& to) {
        constexpr Bytes share = size * rounds;
        TestBuffer source(GetParam(), *opened.backend, from, share * thread_count);
        TestBuffer target(GetParam(), *opened.backend, to, share * thread_count);
        const Content bytes = pattern(share * thread_count, i + 99);
        source.write(bytes);
        // Shared by all, while each attaches and drops the source anew.
        const auto writing = attach(*opened.backend, target.buffer(), Access::write);
        ASSERT_TRUE(writing);
        std::vector<std::thread> threads;
        for (std::size_t t = 0; t < thread_count; ++t) {
            threads.emplace_back([&, t] {
                for (std::size_t n = 0; n < rounds; ++n) {
                    const auto reading = attach(*opened.backend, source.buffer(), Access::read);
                    if (!reading) return;
                    const Bytes at = t * share + n * size;
                    EXPECT_TRUE(
                        move(*opened.backend, {reading.get(), at, writing.get(), at, size, i, nullptr}));
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
        EXPECT_TRUE(equal(bytes, target.read()));
    });
}

TEST_P(BackendContract, OutOfReachIsRefused) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    for_each_pair(GetParam(), opened, false, [&](std::size_t i, const End& from, const End& to) {
        TestBuffer source(GetParam(), *opened.backend, from, 4_KiB);
        TestBuffer target(GetParam(), *opened.backend, to, 4_KiB);
        const Content before(4_KiB, 0xEE);
        target.write(before);
        backend::AttachOptions options;
        const auto reading = opened.backend->attach(source.buffer(), options);
        options.access = Access::write;
        const auto writing = opened.backend->attach(target.buffer(), options);
        if (!reading || !writing) return;  // refused even earlier
        const StartedPiece started(*opened.backend,
                                   Piece{reading->get(), 0, writing->get(), 0, 4_KiB, i, nullptr});
        ASSERT_FALSE(started.begun().ok());
        EXPECT_EQ(started.begun().error().code, ErrorCode::unsupported)
            << started.begun().error().to_string();
        EXPECT_NE(started.begun().error().message, "");
        EXPECT_TRUE(equal(before, target.read()));
    });
}

TEST_P(BackendContract, RegistrationsComeAndGo) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    for_each_pair(GetParam(), opened, true, [&](std::size_t i, const End& from, const End& to) {
        TestBuffer source(GetParam(), *opened.backend, from, 256_KiB);
        TestBuffer target(GetParam(), *opened.backend, to, 256_KiB);
        const Content bytes = pattern(256_KiB, i + 3);
        source.write(bytes);
        attach(*opened.backend, source.buffer(), Access::read).reset();  // never used
        for (int round = 0; round < 3; ++round) {
            const auto reading = attach(*opened.backend, source.buffer(), Access::read);
            const auto also_reading = attach(*opened.backend, source.buffer(), Access::read);
            const auto writing = attach(*opened.backend, target.buffer(), Access::write);
            ASSERT_TRUE(reading && also_reading && writing);
            EXPECT_EQ(reading->buffer().size(), 256_KiB);
            EXPECT_TRUE(move(*opened.backend, {reading.get(), 0, writing.get(), 0, 256_KiB, i, nullptr}));
            EXPECT_TRUE(writing->commit().ok());
            EXPECT_TRUE(writing->notes().empty()) << writing->notes()[0];
        }
        EXPECT_TRUE(equal(bytes, target.read()));
    });
}

TEST_P(BackendContract, AFileThatTookTheNameOfAnotherIsRefused) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    for_each_pair(GetParam(), opened, true, [&](std::size_t, const End& from, const End& to) {
        for (const auto& [end, access] : {std::pair(from, Access::read), std::pair(to, Access::write)}) {
            if (!end.place.is_file()) continue;
            TestBuffer file(GetParam(), *opened.backend, end, 64_KiB);
            file.write(pattern(64_KiB, 1));
            const std::string& path = file.buffer().place().path();
            const auto seen = driver::file_facts(path);
            ASSERT_TRUE(seen.ok() && seen->has_value());
            backend::AttachOptions options;
            options.access = access;
            options.identity = (*seen)->identity;
            EXPECT_TRUE(opened.backend->attach(file.buffer(), options).ok());
            std::filesystem::copy_file(path, path + ".other");
            std::filesystem::rename(path + ".other", path);
            const auto refused = opened.backend->attach(file.buffer(), options);
            ASSERT_FALSE(refused.ok());
            EXPECT_EQ(refused.error().code, ErrorCode::io_error) << refused.error().to_string();
            EXPECT_NE(refused.error().message.find(path), std::string::npos) << refused.error().to_string();
        }
    });
}

TEST_P(BackendContract, EmptyBuffersCanBeAttached) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    for_each_pair(GetParam(), opened, true, [&](std::size_t, const End& from, const End& to) {
        TestBuffer source(GetParam(), *opened.backend, from, 4_KiB);
        TestBuffer target(GetParam(), *opened.backend, to, 4_KiB);
        EXPECT_TRUE(attach(*opened.backend, source.buffer().slice(0, 0), Access::read));
        EXPECT_TRUE(attach(*opened.backend, target.buffer().slice(4_KiB, 0), Access::write));
    });
}

// Every place of the pairs at which the backend allocates, with every kind it gives there.
std::vector<End> allocated_ends(const BackendUnderTest& under_test, backend::Backend& backend) {
    const backend::Allocator* const allocator = backend.allocator();
    if (allocator == nullptr) return {};
    constexpr MemoryKind kinds[] = {MemoryKind::pageable, MemoryKind::pinned, MemoryKind::device,
                                    MemoryKind::pool,     MemoryKind::vmm,    MemoryKind::managed,
                                    MemoryKind::p2pmem};
    std::set<Place> places;
    for (const auto& [from, to] : under_test.pairs) places.insert({from.place, to.place});
    std::vector<End> ends;
    for (const Place& place : places) {
        for (const MemoryKind kind : kinds) {
            if (!place.is_file() && allocator->allocates(place.kind()).has(kind))
                ends.push_back({place, kind});
        }
    }
    return ends;
}

TEST_P(BackendContract, AllocatesAlignedMemoryThatItKnowsAgain) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    for (const End& end : allocated_ends(GetParam(), *opened.backend)) {
        SCOPED_TRACE(end.place.to_string() + " " + std::string(to_string(end.memory)));
        for (const Bytes size : {Bytes{1}, 4_KiB, 5_MiB + 1}) {
            const auto memory = opened.backend->allocator()->allocate(end.place, size, end.memory);
            ASSERT_TRUE(memory.ok()) << memory.error().to_string();
            const auto address = reinterpret_cast<std::uintptr_t>(memory->address());
            EXPECT_EQ(address % (end.place.is_host() ? 4096 : 256), 0u);
            EXPECT_EQ(memory->size(), size);
            EXPECT_EQ(memory->kind(), end.memory);
            EXPECT_EQ(memory->place(), end.place);
            const auto description = opened.backend->describe(memory->buffer());
            ASSERT_TRUE(description.ok()) << description.error().to_string();
            if (!description->has_value()) continue;  // another backend knows
            EXPECT_EQ((*description)->place.kind(), end.place.kind());
            EXPECT_EQ((*description)->memory, end.memory);
        }
    }
}

TEST_P(BackendContract, MemoryThatIsNotThereIsRefused) {
    SIDESTEP_SKIP_CONTRACT();
    const auto opened = open_backend(GetParam());
    for (const End& end : allocated_ends(GetParam(), *opened.backend)) {
        const auto memory = opened.backend->allocator()->allocate(end.place, Bytes{1} << 50, end.memory);
        ASSERT_FALSE(memory.ok()) << end.place.to_string();
        EXPECT_EQ(memory.error().code, ErrorCode::out_of_memory) << memory.error().to_string();
        EXPECT_NE(memory.error().message.find("1024 TiB"), std::string::npos) << memory.error().to_string();
    }
}

TEST_P(BackendContract, AllocationsOutliveTheBackend) {
    SIDESTEP_SKIP_CONTRACT();
    auto opened = open_backend(GetParam());
    std::vector<Allocation> kept;
    for (const End& end : allocated_ends(GetParam(), *opened.backend)) {
        auto memory = opened.backend->allocator()->allocate(end.place, 64_KiB, end.memory);
        ASSERT_TRUE(memory.ok()) << memory.error().to_string();
        kept.push_back(std::move(*memory));
    }
    opened.backend.reset();
    for (const Allocation& memory : kept) {
        if (memory.place().is_host()) std::memset(memory.address(), 1, memory.size());
    }
}

}  // namespace
}  // namespace sidestep::contract
