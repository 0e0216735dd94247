# The CUDA side of the build: whether there is one, for which GPUs, with which flags.
#
# ITHACA_CUDA=AUTO builds it where an NVIDIA driver and nvcc are, so that machines without a GPU build quickly. Sets ITHACA_WITH_CUDA, and defines
# ithaca_cuda_flags for .cu sources (ithaca_flags is for the C++ compiler). CMAKE_CUDA_ARCHITECTURES is honoured; the default is Hopper with its own
# instructions (sm_90a).

set(ITHACA_CUDA "AUTO" CACHE STRING "Build the CUDA backend: AUTO (where an NVIDIA driver and nvcc are), ON, OFF")
set_property(CACHE ITHACA_CUDA PROPERTY STRINGS AUTO ON OFF)

set(ITHACA_WITH_CUDA OFF)
if(ITHACA_CUDA STREQUAL "AUTO")
  find_program(ITHACA_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin PATH_SUFFIXES bin)
  mark_as_advanced(ITHACA_NVCC)
  if(ITHACA_NVCC AND EXISTS /proc/driver/nvidia/version)
    set(ITHACA_WITH_CUDA ON)
  endif()
elseif(ITHACA_CUDA)
  set(ITHACA_WITH_CUDA ON)
endif()

if(ITHACA_WITH_CUDA)
  if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  set(ITHACA_CUDA_ARCHITECTURE_FLAGS)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # the flag below: sm_90a alone, as machine code
    set(CMAKE_CUDA_FLAGS_INIT "-gencode=arch=compute_90a,code=sm_90a")
  endif()
  if(CCACHE_PROGRAM)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  find_package(CUDAToolkit 13 REQUIRED)
  find_package(cuDNN 9 REQUIRED)

  add_library(ithaca_cuda_flags INTERFACE)
  target_compile_options(ithaca_cuda_flags INTERFACE
    -std=c++20 -Xcompiler=-Wall,-Wextra,-ffp-contract=off --expt-relaxed-constexpr --extended-lambda -lineinfo
    $<$<BOOL:${ITHACA_WARNINGS_AS_ERRORS}>:-Werror=all-warnings>
    $<$<BOOL:${ITHACA_WARNINGS_AS_ERRORS}>:-Xcompiler=-Werror>)
endif()
