# What kvxfer is built with. Everything that is missing is named in one error, with the command that
# installs it: first the tools, before project() ends for want of one, then the libraries.

# Without these CMake ends by itself, with an error that names no remedy.
function(kvxfer_require_tools)
  set(missing "")
  if(CMAKE_GENERATOR MATCHES "Ninja" AND NOT CMAKE_MAKE_PROGRAM)
    find_program(KVXFER_NINJA NAMES ninja ninja-build samu)
    if(NOT KVXFER_NINJA)
      list(APPEND missing "ninja (ninja-build)")
    endif()
  endif()
  # A toolchain file says itself which compiler there is. Of CXX the first word: it may have flags.
  separate_arguments(words NATIVE_COMMAND "$ENV{CXX}")
  list(POP_FRONT words from_environment)
  set(names c++ g++ clang++ icpx)
  if(CMAKE_CXX_COMPILER)
    list(GET CMAKE_CXX_COMPILER 0 names)
  elseif(from_environment)
    set(names ${from_environment})
  endif()
  find_program(KVXFER_COMPILER NAMES ${names} NO_CACHE)
  if(NOT KVXFER_COMPILER AND NOT CMAKE_TOOLCHAIN_FILE AND NOT DEFINED ENV{CMAKE_TOOLCHAIN_FILE})
    list(JOIN names " or " names)
    list(APPEND missing "a C++ compiler, ${names} (g++)")
  endif()
  kvxfer_end_where_missing(${missing})
endfunction()

# kvxfer_end_where_missing("what (Debian's package)"...): an error with all of them; none where there
# is none.
function(kvxfer_end_where_missing)
  if(NOT ARGN)
    return()
  endif()
  set(flag "")
  set(without_python "")
  if(KVXFER_BUILD_PYTHON)
    set(flag " --python")
    # Also said where the folder remembers a Python that is gone.
    string(CONCAT without_python
      "This build folder has KVXFER_BUILD_PYTHON=ON. To build without the Python package, run:\n  "
      "cmake --preset dev\n")
  endif()
  list(JOIN ARGN "\n  " missing)
  message(FATAL_ERROR "kvxfer needs what this host lacks (Debian's package in brackets):\n  "
    "${missing}\n"
    "Run this on Debian 12 or newer; elsewhere install what these packages hold:\n  "
    "${CMAKE_CURRENT_SOURCE_DIR}/scripts/setup${flag}\n"
    "${without_python}")
endfunction()

# kvxfer_need_package(<name> <Debian's package> <argument of find_package>...)
macro(kvxfer_need_package name package)
  find_package(${name} ${ARGN} QUIET)
  if(NOT ${name}_FOUND)
    list(APPEND kvxfer_missing "${name} (${package})")
  endif()
endmacro()

# kvxfer_need_header(<variable> <header> <Debian's package>): the folder that has it.
macro(kvxfer_need_header variable header package)
  find_path(${variable} ${header})
  if(NOT ${variable})
    list(APPEND kvxfer_missing "${header} (${package})")
  endif()
endmacro()

# Finds all that the chosen parts are built with; of the caller's scope, as find_package is.
macro(kvxfer_require_libraries)
  set(kvxfer_missing "")
  kvxfer_need_package(absl libabsl-dev CONFIG)
  kvxfer_need_package(Protobuf libprotobuf-dev)
  if(NOT Protobuf_PROTOC_EXECUTABLE)
    list(APPEND kvxfer_missing "protoc (protobuf-compiler)")
  endif()
  kvxfer_need_package(spdlog libspdlog-dev CONFIG)
  # For keys and signatures; nothing of TLS.
  kvxfer_need_package(OpenSSL libssl-dev 3.0 COMPONENTS Crypto)
  kvxfer_need_package(Threads libc6-dev)
  kvxfer_need_package(PkgConfig pkg-config)
  # Only the header: the library is loaded at run time, where it is there.
  kvxfer_need_header(KVXFER_IBVERBS_INCLUDE infiniband/verbs.h libibverbs-dev)
  kvxfer_need_header(KVXFER_XXHASH_INCLUDE xxhash.h libxxhash-dev)
  if(KVXFER_BUILD_CLI OR KVXFER_BUILD_BENCHMARKS)
    kvxfer_need_package(CLI11 libcli11-dev CONFIG)
    kvxfer_need_package(nlohmann_json nlohmann-json3-dev CONFIG)
  endif()
  if(KVXFER_BUILD_TESTS)
    kvxfer_need_package(GTest "libgtest-dev, libgmock-dev" CONFIG)
  endif()
  if(KVXFER_BUILD_BENCHMARKS)
    kvxfer_need_package(benchmark libbenchmark-dev CONFIG)
  endif()
  if(KVXFER_BUILD_PYTHON)
    kvxfer_need_package(Python python3-dev 3.10 COMPONENTS Interpreter Development.Module)
    kvxfer_need_package(pybind11 "3 or newer of PyPI: pip install pybind11" 3 CONFIG)
    kvxfer_need_header(KVXFER_DLPACK_INCLUDE dlpack/dlpack.h libdlpack-dev)
  endif()
  kvxfer_end_where_missing(${kvxfer_missing})
endmacro()
