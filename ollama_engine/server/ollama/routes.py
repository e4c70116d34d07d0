"""Routes: Ollama's API."""

from __future__ import annotations

from fastapi import APIRouter

from ollama_engine.server.ollama.chat_routes import router as chat_router
from ollama_engine.server.ollama.embed_routes import router as embed_router
from ollama_engine.server.ollama.generate_routes import router as generate_router
from ollama_engine.server.ollama.status_routes import router as status_router

__all__ = ["router"]

router = APIRouter()
for part in (status_router, generate_router, chat_router, embed_router):
    router.include_router(part)
