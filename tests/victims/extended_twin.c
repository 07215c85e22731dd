// A part of the host in extended.c that has a function of the same name as another part.
__attribute__((noinline, noipa, used)) static long twin(long *at)
{
	return *at;
}
