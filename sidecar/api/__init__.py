"""The HTTP API. It reads immutable snapshots that the loop swaps, and never touches what the loop works on."""
