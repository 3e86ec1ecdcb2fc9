// What libibverbs says of the RDMA cards that this process may open.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sidestep::driver {

struct VerbsDevice {
    std::string name;  // "mlx5_0"
    bool opens = false;
    std::string reason;           // why it does not open
    std::optional<bool> dma_buf;  // whether it registers dma-buf memory; nullopt: not told
    std::string dma_buf_words;    // what the trial said: "EBADF: it would take a real one"
};

struct VerbsFacts {
    bool loaded = false;
    std::string reason;  // why the library is not there
    std::vector<VerbsDevice> devices;
};

// Loads the library, opens each card, makes a protection domain and tries to register a dma-buf that is
// none (file descriptor -1): EBADF means that the card would take a real one, EOPNOTSUPP that it never
// does, which is how NCCL asks too. Nothing is registered.
VerbsFacts read_verbs_facts(const std::string& library = "libibverbs.so.1");

}  // namespace sidestep::driver
