// The structures by which array libraries hand each other memory: DLPack 1.1, as its documentation lays them
// down (dmlc.github.io/dlpack/latest/c_api.html). Only what is used here.
#pragma once

#include <cstdint>

namespace sidestep::python::dlpack {

enum DeviceType : std::int32_t { on_cpu = 1, on_cuda = 2, on_cuda_host = 3, on_cuda_managed = 13 };

// Of elements. Codes from float8_e3m4 on came with version 1.1.
enum TypeCode : std::uint8_t {
    signed_integer = 0,
    unsigned_integer = 1,
    floating = 2,
    bfloat = 4,
    complex = 5,
    boolean = 6,
    float8_e3m4 = 7,
    float8_e4m3fn = 10,
    float8_e4m3fnuz = 11,
    float8_e5m2 = 12,
    float8_e5m2fnuz = 13,
    float8_e8m0fnu = 14,
    float6_e2m3fn = 15,
    float6_e3m2fn = 16,
    float4_e2m1fn = 17,
};

struct Version {
    std::uint32_t major;
    std::uint32_t minor;
};

struct Device {
    std::int32_t type;
    std::int32_t id;
};

struct DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct View {
    void* data;
    Device device;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; from version 1.2 on never null, before that null for C order
    std::uint64_t byte_offset;
};

// What a capsule called "dltensor" points to.
struct Managed {
    View view;
    void* owner;
    void (*deleter)(Managed*);
};

// What a capsule called "dltensor_versioned" points to.
struct VersionedManaged {
    Version version;
    void* owner;
    void (*deleter)(VersionedManaged*);
    std::uint64_t flags;
    View view;
};

constexpr std::uint64_t read_only = 1;

}  // namespace sidestep::python::dlpack
