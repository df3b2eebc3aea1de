package embedpg

// Alive is for the tests of the package's outside.
var Alive = alive
