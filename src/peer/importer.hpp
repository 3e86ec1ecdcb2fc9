// What other processes publish. There is one connection to each process, for any number of names. One thread notices when a
// process ends, so that its memory is unmapped even if no caller looks at it again.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "peer/connection.hpp"
#include "peer/folder.hpp"

namespace sidestep::peer {

// Any thread may call. Its thread starts with the first name.
class Importer {
public:
    // `ended` is called on the importer's thread after anything that was offered has ended: withdrawn, or its process
    // is gone.
    explicit Importer(std::function<void()> ended) : ended_(std::move(ended)) {}
    // No call of `ended` comes after it. Not to be destroyed by `ended`.
    ~Importer();
    Importer(const Importer&) = delete;
    Importer& operator=(const Importer&) = delete;

    // ErrorCode::not_found where nothing is published under the name; timed_out where its process says nothing;
    // permission_denied where it runs as another user; out_of_memory where it has no room for this process. What a dead
    // process left at the name is removed.
    Result<Offered> find(const Folder& folder, const std::string& name, Connection::Time until);

    // Connections without holders are closed soon after.
    void tidy();

private:
    Result<void> start();
    Result<std::shared_ptr<Connection>> connect(const std::string& path, Connection::Time until);
    std::shared_ptr<Connection> known(const std::string& socket) const;
    void watch();

    const std::function<void()> ended_;
    std::mutex mutex_;  // guards what follows
    std::vector<std::shared_ptr<Connection>> connections_;
    bool stop_ = false;
    std::shared_ptr<const driver::Waker> waker_;  // constant once the thread runs
    std::thread thread_;
};

}  // namespace sidestep::peer
