//! Calls that are awaited.

/// Lets a call be awaited: then it is sent, by its method `send`. Before the type may be its parameters, in brackets.
macro_rules! awaited {
    ([$($parameter:tt)*] $call:ty => $output:ty) => {
        impl<$($parameter)*> std::future::IntoFuture for $call {
            type Output = Result<$output, crate::Error>;
            type IntoFuture = std::pin::Pin<Box<dyn std::future::Future<Output = Self::Output> + Send>>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.send())
            }
        }
    };
    ($call:ty => $output:ty) => {
        awaited!([] $call => $output);
    };
}

pub(crate) use awaited;
