# Finds the header of NVIDIA NCCL: in $NCCL_ROOT (variable or environment), the system, the CUDA toolkit, or Python wheels. The library itself is loaded
# at run time.
#
# Sets NCCL_INCLUDE_DIR and NCCL_VERSION.

include(CudaWheelFolders)
ithaca_cuda_wheel_folders(_nccl_wheels nccl)
set(_nccl_paths ${CUDAToolkit_LIBRARY_ROOT} ${CUDAToolkit_TARGET_DIR} $ENV{CUDA_HOME})
file(GLOB _nccl_toolkits LIST_DIRECTORIES true /usr/local/cuda /usr/local/cuda-* /usr/local/cuda*/targets/x86_64-linux)
list(APPEND _nccl_paths ${_nccl_toolkits} ${_nccl_wheels})

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} $ENV{NCCL_ROOT} PATHS ${_nccl_paths} PATH_SUFFIXES include)

if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" _nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH)[ \t]+[0-9]+")
  set(NCCL_VERSION)
  foreach(part MAJOR MINOR PATCH)
    string(REGEX MATCH "#define NCCL_${part}[ \t]+([0-9]+)" _nccl_match "${_nccl_lines}")
    list(APPEND NCCL_VERSION ${CMAKE_MATCH_1})
  endforeach()
  list(JOIN NCCL_VERSION "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
mark_as_advanced(NCCL_INCLUDE_DIR)
