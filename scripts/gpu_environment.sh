# For gpu_check.sh and scaling_check.sh, which source it: where CUDA's libraries are on this machine.

# find_gpu_libraries FOLDER PROGRAM: sets LD_LIBRARY_PATH so that PROGRAM of the bundle or build folder FOLDER finds what it needs, and
# ITHACA_TEST_DATA where FOLDER has it; says what it found. Fails where a library is missing.
find_gpu_libraries() {
  local folder=$1 program=$2 python_root search root path name found
  python_root=$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null || true)
  search=()
  for root in "$folder/lib" /usr/local/cuda /usr/local/cuda-13* /usr/local/nvidia /usr/lib/x86_64-linux-gnu "$python_root/lib" /opt/*/.venv/lib; do
    [ -d "$root" ] && search+=("$root/")
  done
  path=$folder/lib
  for name in libcublasLt.so.13 libcublas.so.13 libcudnn.so.9 libnvrtc.so.13 libcupti.so.13 libnccl.so.2; do
    found=$(find -L "${search[@]}" -maxdepth 7 -name "$name" -not -path '*/stubs/*' 2>/dev/null | head -1)
    [ -n "$found" ] && path=$path:$(dirname "$found")
    echo "$name: ${found:-not found (the loader may know it)}"
  done
  export LD_LIBRARY_PATH=$path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  [ -d "$folder/data/models" ] && ITHACA_TEST_DATA=$(cd "$folder" && pwd)/data && export ITHACA_TEST_DATA
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "nvidia-smi does not answer"
  # "not found" is also said of symbol versions that the C++ runtime here is too old for.
  if ldd "$program" 2>&1 | grep -E 'not found' | grep -qE 'libstdc|libgcc|GLIBCXX|CXXABI'; then
    export LD_LIBRARY_PATH=$folder/lib/fallback:$LD_LIBRARY_PATH
  fi
  ! ldd "$program" 2>&1 | grep 'not found'
}
