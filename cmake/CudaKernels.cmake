# The copy kernel of src/cuda/kernels.cu, and kernels of tests, compiled for the GPUs of today and, as
# PTX, for later ones.
#
# Needs nvcc and no CUDA language, library or GPU. Without nvcc a package's kvxfer_kernels.fatbin may be
# given; with neither, or where KVXFER_CUDA_TOOLKIT is OFF, GPUs copy by the driver, a call for each
# piece (slower by far where blocks are small), and say so.
set(KVXFER_CUDA_TOOLKIT AUTO CACHE STRING
  "Compile the GPU kernel: AUTO where there is nvcc, ON or OFF")
set_property(CACHE KVXFER_CUDA_TOOLKIT PROPERTY STRINGS AUTO ON OFF)
set(KVXFER_CUDA_KERNELS "" CACHE FILEPATH
  "A compiled GPU kernel to take instead: kvxfer_kernels.fatbin of a package of the same version")

# sm_80 runs on 8.x, sm_90 on 9.x, and so on; what nvcc does not know of the list is left out.
set(KVXFER_CUDA_ARCHITECTURES 80 90 100 120 CACHE STRING "GPUs that the kernel is compiled for")
set(KVXFER_CUDA_PTX 80 CACHE STRING "The oldest one that the driver may compile it for")

# kvxfer_cuda_kernels(<target> <source>): <source> of <target> is compiled with KVXFER_CUDA_FATBIN, the
# path of that file, where there is one; the variable KVXFER_CUDA_FATBIN has it too.
function(kvxfer_cuda_kernels target source)
  set(fatbin "")
  if(KVXFER_CUDA_KERNELS)
    if(NOT EXISTS ${KVXFER_CUDA_KERNELS})
      message(FATAL_ERROR "KVXFER_CUDA_KERNELS: there is no ${KVXFER_CUDA_KERNELS}")
    endif()
    set(fatbin ${KVXFER_CUDA_KERNELS})
  elseif(NOT KVXFER_CUDA_TOOLKIT STREQUAL "OFF")
    find_program(KVXFER_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
      PATH_SUFFIXES bin DOC "The CUDA compiler")
    if(KVXFER_NVCC)
      set(fatbin ${PROJECT_BINARY_DIR}/src/cuda/kvxfer_kernels.fatbin)
      kvxfer_cuda_fatbin(${fatbin} ${PROJECT_SOURCE_DIR}/src/cuda/kernels.cu
        ${PROJECT_SOURCE_DIR}/src/cuda/kernels.cuh)
    elseif(KVXFER_CUDA_TOOLKIT STREQUAL "ON")
      message(FATAL_ERROR "KVXFER_CUDA_TOOLKIT is ON and there is no nvcc; set KVXFER_NVCC")
    endif()
  endif()
  set(KVXFER_CUDA_FATBIN "${fatbin}" PARENT_SCOPE)
  if(fatbin)
    target_sources(${target} PRIVATE ${fatbin})
    set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS ${fatbin}
      COMPILE_DEFINITIONS "KVXFER_CUDA_FATBIN=\"${fatbin}\"")
  else()
    message(STATUS "kvxfer: without a GPU kernel (no nvcc); GPUs copy by the driver")
  endif()
endfunction()

# kvxfer_cuda_fatbin(<out> <source> <header>...): the rule that makes one. Needs KVXFER_NVCC.
function(kvxfer_cuda_fatbin out source)
  execute_process(COMMAND ${KVXFER_NVCC} --list-gpu-code OUTPUT_VARIABLE known RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${KVXFER_NVCC} does not run; KVXFER_CUDA_TOOLKIT=OFF does without it")
  endif()
  set(code -gencode arch=compute_${KVXFER_CUDA_PTX},code=compute_${KVXFER_CUDA_PTX})
  set(for "")
  foreach(sm IN LISTS KVXFER_CUDA_ARCHITECTURES)
    if("${known}\n" MATCHES "sm_${sm}\n")
      list(APPEND code -gencode arch=compute_${sm},code=sm_${sm})
      string(APPEND for " ${sm}")
    endif()
  endforeach()
  cmake_path(GET out PARENT_PATH folder)
  cmake_path(GET source FILENAME name)
  message(STATUS "${name} for${for} and PTX of ${KVXFER_CUDA_PTX}")
  # The host's compiler only preprocesses.
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${KVXFER_NVCC} -fatbin -std=c++17 -O3 -I${PROJECT_SOURCE_DIR} ${code}
      -ccbin ${CMAKE_CXX_COMPILER} -allow-unsupported-compiler -o ${out} ${source}
    DEPENDS ${source} ${ARGN}
    COMMENT "Compiling ${name} for GPUs" VERBATIM)
endfunction()
