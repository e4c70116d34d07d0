# llama.cpp on the ggml that this package was built with, so that a backend of a thousand kernels is compiled once, and
# both engines run the same code. CMAKE_PROJECT_INCLUDE names this file: llama.cpp adds no ggml where it finds a target.
if(NOT TARGET ggml)
  foreach(target ggml ggml-base ggml-cpu)
    add_library(${target} SHARED IMPORTED GLOBAL)
    set_target_properties(${target} PROPERTIES
                          IMPORTED_LOCATION "${OLLAMA_ENGINE_GGML_LIBRARIES}/${CMAKE_SHARED_LIBRARY_PREFIX}${target}-oe${CMAKE_SHARED_LIBRARY_SUFFIX}"
                          INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_SOURCE_DIR}/ggml/include")
  endforeach()
  target_link_libraries(ggml INTERFACE ggml-base ggml-cpu)
  add_link_options("-Wl,-rpath-link,${OLLAMA_ENGINE_GGML_LIBRARIES}") # the backends that libggml itself needs
endif()
