# ggml as another build has installed it: for builds that differ in our code only, such as those with sanitizers.
foreach(target ggml ggml-base ggml-cpu)
  set(library "${OLLAMA_ENGINE_GGML_LIBRARIES}/${CMAKE_SHARED_LIBRARY_PREFIX}${target}-oe${CMAKE_SHARED_LIBRARY_SUFFIX}")
  if(NOT EXISTS "${library}")
    message(FATAL_ERROR "OLLAMA_ENGINE_GGML_LIBRARIES holds no ${library}; it must be ollama_engine/_lib of a build")
  endif()
  add_library(${target} SHARED IMPORTED)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${library}"
                        INTERFACE_INCLUDE_DIRECTORIES "${ggml_source}/include")
  install(FILES "${library}" DESTINATION ollama_engine/_lib)
endforeach()
# What libggml itself needs, where that build has it.
foreach(backend rpc cuda vulkan metal)
  set(library "${OLLAMA_ENGINE_GGML_LIBRARIES}/${CMAKE_SHARED_LIBRARY_PREFIX}ggml-${backend}-oe${CMAKE_SHARED_LIBRARY_SUFFIX}")
  if(EXISTS "${library}")
    install(FILES "${library}" DESTINATION ollama_engine/_lib)
  endif()
endforeach()
target_link_libraries(ggml INTERFACE ggml-base ggml-cpu)
