// The cufile backend over the made-up cuFile and CUDA libraries (tests/fake_cufile, tests/fake_cuda).
#include "backend_contract.hpp"
#include "tests/fake_cufile/stand_in.hpp"

namespace sidestep::contract {
namespace {

// The backend, with GPU memory from the one that allocates it.
class WithMemory final : public backend::Backend, public backend::Allocator {
public:
    std::string_view name() const override { return cufile_->name(); }
    backend::Support probe(const Topology& topology) override {
        memory_->probe(topology);
        return cufile_->probe(topology);
    }
    std::vector<backend::Capability> capabilities() const override { return cufile_->capabilities(); }
    backend::Allocator* allocator() override { return this; }
    backend::MemorySet allocates(PlaceKind kind) const override {
        return kind == PlaceKind::gpu ? memory_->allocator()->allocates(kind) : backend::MemorySet{};
    }
    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override {
        return memory_->describe(buffer);
    }
    Result<Allocation> allocate(const Place& place, Bytes bytes, MemoryKind kind) override {
        return memory_->allocator()->allocate(place, bytes, kind);
    }
    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override {
        return cufile_->attach(buffer, options);
    }
    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override {
        return cufile_->start(piece, flight);
    }

private:
    std::unique_ptr<backend::Backend> memory_ = backends::cuda::create();
    std::unique_ptr<backend::Backend> cufile_ = fake_cufile::make();
};

End gpu(int index) {
    return {Place::gpu(index), MemoryKind::device};
}

const End file{Place::file(""), MemoryKind::storage};
const End pageable{Place::host(), MemoryKind::pageable};

INSTANTIATE_TEST_SUITE_P(
    Contract, BackendContract,
    testing::Values(BackendUnderTest{
        .name = "Cufile",
        .make = [] { return std::make_unique<WithMemory>(); },
        .topology = [] { return Topology::live(); },
        .pairs = {{file, gpu(0)}, {gpu(1), file}, {file, file}, {gpu(0), gpu(1)}, {file, pageable}},
        .skip = fake_cufile::missing(),
    }),
    NameOfBackend());

}  // namespace
}  // namespace sidestep::contract
