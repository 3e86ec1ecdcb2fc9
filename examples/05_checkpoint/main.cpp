// Saves a checkpoint from GPU memory, loads it onto all GPUs, and compares. Runs anywhere: the GPUs are
// emulated in host memory unless SIDESTEP_MACHINE names another machine ("live" is this one).
//
//     example_checkpoint FOLDER [SIZE]     SIZE of the weights, 64MiB if left out; the files stay in FOLDER
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <sidestep/sidestep.hpp>

using namespace sidestep;

namespace {

constexpr std::uint64_t columns = 4096;

// Layers of BF16 weights with a small bias each, as a model has them, filled with bytes that differ.
Result<void> make_model(const Context& context, Bytes size, std::vector<Allocation>& memory,
                        std::vector<TensorToSave>& tensors) {
    const Bytes layer = 16_MiB;
    std::vector<unsigned> pattern(layer / sizeof(unsigned));
    for (Bytes made = 0; made < size; made += layer) {
        std::string name = "model.layers.";
        name += std::to_string(made / layer);
        for (unsigned& word : pattern)
            word = static_cast<unsigned>(&word - pattern.data()) * 2654435761u + static_cast<unsigned>(made);
        auto block = context.allocate(Place::gpu(0), layer + columns * 4);
        if (!block) return block.error();
        auto copied =
            context.copy(Buffer::host(pattern.data(), layer), block->buffer().slice(0, layer)).wait();
        if (!copied) return copied.error();
        copied =
            context.copy(Buffer::host(pattern.data(), columns * 4), block->buffer().slice(layer, columns * 4))
                .wait();
        if (!copied) return copied.error();
        tensors.push_back(
            {name + ".weight", Dtype::bf16, {layer / columns / 2, columns}, block->buffer().slice(0, layer)});
        tensors.push_back({name + ".bias", Dtype::f32, {columns}, block->buffer().slice(layer, columns * 4)});
        memory.push_back(std::move(*block));
    }
    return {};
}

Result<std::vector<char>> bytes_of(const Context& context, const Buffer& buffer) {
    std::vector<char> bytes(buffer.size());
    auto copied = context.copy(buffer, Buffer::host(bytes.data(), bytes.size())).wait();
    if (!copied) return copied.error();
    return bytes;
}

Result<void> compare(const Context& context, const std::vector<TensorToSave>& saved, const Loaded& loaded) {
    for (const TensorToSave& tensor : saved) {
        const auto wanted = bytes_of(context, tensor.data);
        if (!wanted) return wanted.error();
        for (const Place& place : loaded.places()) {
            const LoadedTensor* found = loaded.find(tensor.name, place);
            if (found == nullptr) return Error{ErrorCode::not_found, tensor.name, place.to_string(), {}};
            const auto there = bytes_of(context, found->buffer);
            if (!there) return there.error();
            if (*there != *wanted) return Error{ErrorCode::mismatch, tensor.name, place.to_string(), {}};
        }
    }
    return {};
}

Result<void> run(const std::string& folder, Bytes size) {
    const char* machine = std::getenv("SIDESTEP_MACHINE");
    auto context = Context::open({machine != nullptr ? machine : "dgx-h100"});
    if (!context) return context.error();
    std::vector<Allocation> memory;
    std::vector<TensorToSave> tensors;
    if (auto made = make_model(*context, size, memory, tensors); !made) return made;

    SaveOptions save;
    save.shard_bytes = size / 2 + 1_MiB;
    auto saved = context->save(tensors, folder, save).wait();
    if (!saved) return saved.error();
    std::printf("saved: %s\n", saved->summary().c_str());

    auto checkpoint = Checkpoint::open(folder);
    if (!checkpoint) return checkpoint.error();
    std::printf("%s\n", checkpoint->summary().c_str());
    LoadOptions load;
    load.to.clear();
    for (const Device& device : context->topology().devices())
        if (device.kind == DeviceKind::gpu && load.to.size() < 4) load.to.push_back(Place::gpu(device.index));
    auto loaded = context->load(*checkpoint, load).wait();
    if (!loaded) return loaded.error();
    std::printf("%s", loaded->report().c_str());
    return compare(*context, tensors, *loaded);
}

}  // namespace

int main(int argc, char** argv) {
    const auto size = parse_bytes(argc > 2 ? argv[2] : "64MiB");
    if (argc < 2 || !size) {
        std::fprintf(stderr, "usage: example_checkpoint FOLDER [SIZE]\n");
        return 2;
    }
    const auto done = run(argv[1], *size);
    if (done) {
        std::printf("every tensor on every GPU is the one that was saved\n");
        return 0;
    }
    std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
    return 1;
}
