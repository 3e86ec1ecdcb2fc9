// Children of fork(): refused where the driver was open, and free where it was not.
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cufile/world.hpp"

namespace {

using namespace sidestep::cufile_test;

// Runs it in a child, which answers with its exit status; 99 where it does not end within 20 s.
template <typename Work>
int in_child(Work work) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        ::_exit(work());
    }
    int status = 0;
    if (::waitpid(child, &status, 0) != child) return 98;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

TEST(CufileFork, AChildOfAnOpenDriverIsRefusedAndDoesNotHang) {
    const TempFile file(pattern(1'000'000, 1));
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    std::vector<char> memory(1'000'000);
    EXPECT_EQ(cuFileRead(handle, memory.data(), memory.size(), 0, 0), 1'000'000);
    EXPECT_EQ(in_child([&] {
                  CUfileDescr_t described = description(descriptor);
                  CUfileHandle_t other = nullptr;
                  CUfileDrvProps_t props;
                  int line = 0;
                  for (const CUfileError_t refused :
                       {cuFileDriverOpen(), cuFileDriverClose(), cuFileDriverGetProperties(&props),
                        cuFileHandleRegister(&other, &described), cuFileBufRegister(memory.data(), 10, 0),
                        cuFileBufDeregister(memory.data())}) {
                      ++line;
                      if (refused.err != CU_FILE_DRIVER_NOT_INITIALIZED || refused.cu_err != 3) return line;
                  }
                  for (const size_t size : {size_t{10}, memory.size()}) {
                      ++line;
                      if (cuFileRead(handle, memory.data(), size, 0, 0) != -CU_FILE_DRIVER_NOT_INITIALIZED)
                          return line;
                  }
                  if (cuFileUseCount() != 0) return 20;
                  if (std::string(sidestepCufileLastError()).find("forked") == std::string::npos) return 21;
                  cuFileHandleDeregister(handle);
                  return 0;
              }),
              0);
    // Nothing of that reached the parent.
    EXPECT_EQ(cuFileRead(handle, memory.data(), memory.size(), 0, 0), 1'000'000);
}

TEST(CufileFork, AChildOfAClosedProcessOpensItsOwn) {
    if (cuFileUseCount() > 0) GTEST_SKIP() << "another test of this process has opened the driver";
    const TempFile file(pattern(1'000'000, 1));
    EXPECT_EQ(in_child([&] {
                  const Descriptor descriptor(file.path(), O_RDWR);
                  const Handle handle(descriptor);
                  std::vector<char> memory(1'000'000);
                  return cuFileRead(handle, memory.data(), memory.size(), 0, 0) == 1'000'000 ? 0 : 1;
              }),
              0);
}

}  // namespace
