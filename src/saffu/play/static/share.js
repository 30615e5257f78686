export function startShare() {}
